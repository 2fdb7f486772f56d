// SPDX-License-Identifier: Apache-2.0
//
// Ledgers and queue together: whatever is admitted is really there, and nobody
// is overtaken on a GPU that it waits for.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/units.h"
#include "core/ledger.h"
#include "core/queue.h"

namespace gpumux::core {
namespace {

// The library's own ranges start small and grow with the run; here the whole
// range counts from the first history on.
template <typename T>
rc::Gen<T> InRange(T low, T high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

constexpr uint64_t kTotal = 140 * kGiB;
constexpr uint64_t kReserve = kGiB;

struct World {
  std::vector<Ledger> ledgers;
  std::vector<std::map<TenantId, Mode>> tenants;

  std::vector<GpuSnapshot> Snapshot() const {
    std::vector<GpuSnapshot> gpus;
    for (size_t i = 0; i < ledgers.size(); ++i) {
      GpuSnapshot gpu;
      gpu.uuid.bytes[0] = static_cast<uint8_t>(i + 1);
      gpu.index = static_cast<unsigned>(i);
      gpu.name = "NVIDIA H200";
      gpu.total_bytes = kTotal;
      gpu.reserve_bytes = kReserve;
      gpu.promisable_bytes = ledgers[i].PromisableBytes();
      gpu.guaranteed_bytes = ledgers[i].GuaranteedBytes();
      gpu.tenants = tenants[i].size();
      if (!tenants[i].empty()) gpu.mode = tenants[i].begin()->second;
      gpu.context = ContextCostOf(gpu.name);
      gpus.push_back(gpu);
    }
    return gpus;
  }
};

Request AnyRequest(uint64_t id, size_t gpus) {
  Request request;
  request.id = id;
  if (*InRange(0, 4)) {
    request.mem = MemorySize{.bytes = *InRange<uint64_t>(0, kTotal + kGiB), .ratio = 0};
    if (*rc::gen::arbitrary<bool>()) request.mem_limit = MemorySize{.bytes = 0, .ratio = 1};
  }
  if (*rc::gen::arbitrary<bool>()) {
    request.gpu_count = *InRange(1u, 4u);
  } else {
    request.gpu_list = {std::to_string(*InRange<size_t>(0, gpus + 1))};
  }
  if (*rc::gen::arbitrary<bool>()) request.mode = *rc::gen::element(Mode::kExclusive, Mode::kTimeslice);
  return request;
}

void RandomHistory() {
  const size_t count = *InRange<size_t>(1, 4);
  World world;
  world.ledgers.assign(count, Ledger(kTotal, kReserve));
  world.tenants.resize(count);
  Queue queue;
  uint64_t next_id = 1;
  const int steps = *InRange(1, 25);
  for (int step = 0; step < steps; ++step) {
    if (*InRange(0, 3)) {
      RC_ASSERT(queue.Push(AnyRequest(next_id++, count)));
    } else if (next_id > 1) {
      const uint64_t id = *InRange<uint64_t>(1, next_id);
      queue.Remove(id);
      for (size_t i = 0; i < count; ++i) {
        world.ledgers[i].RemoveTenant(std::to_string(id));
        world.tenants[i].erase(std::to_string(id));
      }
    }
    while (true) {
      const auto gpus = world.Snapshot();
      std::vector<Request> ahead;
      for (const auto& waiting : queue.waiting()) ahead.push_back(waiting.request);
      auto outcome = queue.Next(gpus);
      if (!outcome) break;
      const auto* placement = std::get_if<Placement>(&outcome->decision);
      if (!placement) continue;
      const Request& started = outcome->request;
      std::set<gpu::Uuid> used;
      for (const Share& share : placement->shares) {
        RC_ASSERT(used.insert(share.gpu).second);
        const size_t i = share.gpu.bytes[0] - 1u;
        // Really there, and one mode a GPU.
        RC_ASSERT(world.ledgers[i].AddTenant(std::to_string(started.id), share.guaranteed_bytes,
                                             share.limit_bytes));
        if (!world.tenants[i].empty()) {
          RC_ASSERT(placement->mode == Mode::kTimeslice);
          RC_ASSERT(world.tenants[i].begin()->second == Mode::kTimeslice);
        }
        world.tenants[i][std::to_string(started.id)] = placement->mode;
        RC_ASSERT(world.ledgers[i].Holds());
      }
      RC_ASSERT(used.size() == (started.gpu_list.empty() ? started.gpu_count : started.gpu_list.size()));
      // None of those that were ahead and wait on could use these GPUs.
      for (const Request& other : ahead) {
        if (other.id >= started.id) continue;
        const auto alone = Admit(other, gpus, {});
        if (const Wait* wait = std::get_if<Wait>(&alone)) {
          for (const auto& uuid : used) RC_ASSERT(!wait->wants.contains(uuid));
        }
      }
    }
    // The head of what is left cannot start: it was judged with nobody ahead.
    if (!queue.waiting().empty()) {
      RC_ASSERT(std::holds_alternative<Wait>(Admit(queue.waiting().front().request, world.Snapshot(), {})));
    }
  }
}

TEST(QueueProperty, AdmitsOnlyWhatIsThereAndInOrder) {
  rc::detail::TestParams params;
  params.seed = 7;
  params.maxSuccess = 3000;
  const auto result = rc::detail::checkTestable([] { RandomHistory(); },
                                                rc::detail::TestMetadata{"queue histories", ""}, params);
  std::ostringstream out;
  rc::detail::printResultMessage(result, out);
  EXPECT_TRUE(result.is<rc::detail::SuccessResult>()) << out.str();
}

}  // namespace
}  // namespace gpumux::core
