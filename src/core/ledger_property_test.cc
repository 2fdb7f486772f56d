// SPDX-License-Identifier: Apache-2.0
//
// Random histories of the ledger against a model that is written differently:
// a flat list of (tenant, process, bytes) and sums made anew for every question.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "base/units.h"
#include "core/ledger.h"

namespace gpumux::core {
namespace {

// The library's own ranges start small and grow with the run; here the whole
// range counts from the first history on.
template <typename T>
rc::Gen<T> InRange(T low, T high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

struct Model {
  struct Tenant {
    uint64_t guaranteed;
    std::optional<uint64_t> limit;
  };
  std::map<TenantId, Tenant> tenants;
  std::map<std::pair<TenantId, ProcessKey>, std::pair<uint64_t, uint64_t>> processes;  // granted, overhead
  uint64_t total, reserve, outside = 0;

  uint64_t Used(const TenantId& id) const {
    uint64_t sum = 0;
    for (const auto& [key, bytes] : processes) {
      if (key.first == id) sum += bytes.first + bytes.second;
    }
    return sum;
  }
  uint64_t Taken() const {
    uint64_t sum = reserve + outside;
    for (const auto& [id, tenant] : tenants) sum += std::max(tenant.guaranteed, Used(id));
    return sum;
  }
};

// Sizes around the interesting ones: tiny, the driver's units, the whole GPU and beyond.
rc::Gen<uint64_t> Bytes(uint64_t total) {
  return rc::gen::oneOf(
      InRange<uint64_t>(0, 4096), InRange<uint64_t>(0, total / 4), InRange<uint64_t>(0, total + total / 8),
      rc::gen::element<uint64_t>(0, 1, 2 * kMiB, total, UINT64_MAX, UINT64_MAX - 1, 1ull << 63));
}

void CheckAgainst(const Ledger& ledger, const Model& model, bool strangers) {
  uint64_t guaranteed = 0, used = 0;
  for (const auto& [id, tenant] : model.tenants) {
    RC_ASSERT(ledger.Find(id) != nullptr);
    RC_ASSERT(ledger.Find(id)->used_bytes == model.Used(id));
    guaranteed += tenant.guaranteed;
    used += model.Used(id);
  }
  RC_ASSERT(ledger.Tenants().size() == model.tenants.size());
  RC_ASSERT(ledger.GuaranteedBytes() == guaranteed);
  RC_ASSERT(ledger.UsedBytes() == used);
  const uint64_t taken = model.Taken();
  RC_ASSERT(ledger.PromisableBytes() == (taken < model.total ? model.total - taken : 0));
  RC_ASSERT(ledger.Holds() == (taken <= model.total));
  if (!strangers) {
    // Nobody but gpumux acted: the invariant of the file's head holds, and no
    // tenant is above its limit.
    RC_ASSERT(taken <= model.total);
    for (const auto& [id, tenant] : model.tenants)
      RC_ASSERT(!tenant.limit || model.Used(id) <= *tenant.limit);
  }
}

// What the histories met in all: a generator that never fills a GPU proves nothing.
std::map<Verdict, int> g_verdicts;
int g_changes = 0;

void RandomHistory() {
  const uint64_t total = *InRange<uint64_t>(64 * kMiB, 160 * kGiB);
  Model model;
  model.total = total;
  model.reserve = *InRange<uint64_t>(0, total / 8);
  Ledger ledger(total, model.reserve);
  bool strangers = false;  // whether facts from outside were forced on the ledger
  const int steps = *InRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    const TenantId id(1, static_cast<char>('a' + *InRange(0, 3)));
    const ProcessKey process = *InRange<ProcessKey>(1, 3);
    const auto key = std::pair(id, process);
    const bool known = model.tenants.contains(id);
    const bool alive = model.processes.contains(key);
    switch (*rc::gen::element(0, 0, 0, 1, 2, 3, 3, 3, 4, 5, 6, 6, 6, 6, 7, 7, 8, 8, 9, 10, 11)) {
      case 0:
      case 1: {
        const uint64_t guaranteed = *rc::gen::oneOf(Bytes(total), InRange<uint64_t>(0, total / 3));
        std::optional<uint64_t> limit;
        if (*rc::gen::arbitrary<bool>()) limit = *Bytes(total);
        const uint64_t taken = model.Taken();
        const bool fits =
            !known && taken <= total && guaranteed <= total - taken && (!limit || *limit >= guaranteed);
        const bool zero_on_full = !known && taken > total && guaranteed == 0;  // no byte is promised
        RC_ASSERT(ledger.AddTenant(id, guaranteed, limit) == (fits || zero_on_full));
        if (fits || zero_on_full) model.tenants[id] = {guaranteed, limit};
        break;
      }
      case 2:
        ledger.RemoveTenant(id);
        model.tenants.erase(id);
        std::erase_if(model.processes, [&](const auto& p) { return p.first.first == id; });
        break;
      case 3:
      case 4:
        RC_ASSERT(ledger.AddProcess(id, process) == (known && !alive));
        if (known && !alive) model.processes[key] = {0, 0};
        break;
      case 5:
        ledger.RemoveProcess(id, process);
        model.processes.erase(key);
        break;
      case 6:
      case 7: {
        const uint64_t bytes = *Bytes(total);
        const bool slack = *rc::gen::arbitrary<bool>();
        const uint64_t available = ledger.AvailableBytes(id);
        const bool would = ledger.WouldFit(id, bytes, {});
        const auto grant = ledger.GrantCredit(id, process, bytes, slack);
        ++g_verdicts[grant.verdict];
        RC_ASSERT((grant.verdict == Verdict::kUnknown) == !alive);
        if (!alive) break;
        RC_ASSERT((grant.verdict == Verdict::kGranted) == (bytes <= available));
        RC_ASSERT(would == (grant.verdict == Verdict::kGranted));
        if (grant.verdict == Verdict::kGranted) model.processes[key].first += bytes + grant.slack_bytes;
        // Slack is guaranteed bytes alone.
        if (grant.slack_bytes > 0) RC_ASSERT(model.Used(id) <= model.tenants[id].guaranteed);
        break;
      }
      case 8: {
        const uint64_t bytes = *Bytes(total);
        const uint64_t taken = ledger.TakeBack(id, process, bytes);
        RC_ASSERT(taken == (alive ? std::min(bytes, model.processes[key].first) : 0));
        if (alive) model.processes[key].first -= taken;
        break;
      }
      case 9: {
        const uint64_t bytes = *Bytes(total);
        if (*rc::gen::arbitrary<bool>()) {
          const auto grant = ledger.ChargeOverhead(id, process, bytes);
          if (grant.verdict == Verdict::kGranted) model.processes[key].second += bytes;
        } else if (alive) {
          ledger.SetOverhead(id, process, bytes);
          strangers |= bytes > model.processes[key].second;
          model.processes[key].second = std::min(bytes, total);
        }
        break;
      }
      case 11: {
        const uint64_t guaranteed = *rc::gen::oneOf(Bytes(total), InRange<uint64_t>(0, total / 3));
        std::optional<uint64_t> limit;
        if (*rc::gen::arbitrary<bool>()) limit = *Bytes(total);
        const uint64_t used = model.Used(id);
        const uint64_t before = known ? std::max(model.tenants[id].guaranteed, used) : 0;
        const uint64_t after = std::max(guaranteed, used);
        const uint64_t taken = model.Taken();
        const bool room = after <= before || (taken <= total && after - before <= total - taken);
        const bool fits = known && room && (!limit || *limit >= guaranteed);
        RC_ASSERT(ledger.ChangeTenant(id, guaranteed, limit) == fits);
        if (fits) model.tenants[id] = {guaranteed, limit};
        // From then on it may be above its limit, as if strangers had acted.
        strangers |= fits && limit && used > *limit;
        g_changes += fits;
        break;
      }
      case 10: {
        const uint64_t unmanaged = *InRange<uint64_t>(0, total);
        const uint64_t unexplained = *InRange<uint64_t>(0, total / 16);
        ledger.SetOutside(unmanaged, unexplained);
        strangers |= unmanaged + unexplained > model.outside;
        model.outside = unmanaged + unexplained;
        break;
      }
    }
    CheckAgainst(ledger, model, strangers);
  }
  for (const auto& [id, tenant] : model.tenants) ledger.RemoveTenant(id);
  ledger.SetOutside(0, 0);
  RC_ASSERT(ledger.PromisableBytes() == total - model.reserve);
}

TEST(LedgerProperty, KeepsItsInvariantInEveryHistory) {
  rc::detail::TestParams params;
  params.seed = 20240229;
  params.maxSuccess = 10000;
  const auto result = rc::detail::checkTestable([] { RandomHistory(); },
                                                rc::detail::TestMetadata{"ledger histories", ""}, params);

  std::ostringstream out;
  rc::detail::printResultMessage(result, out);
  ASSERT_TRUE(result.is<rc::detail::SuccessResult>()) << out.str();
  EXPECT_EQ(result.get<rc::detail::SuccessResult>().numSuccess, 10000);
  for (const Verdict verdict : {Verdict::kGranted, Verdict::kLimit, Verdict::kDeviceFull}) {
    EXPECT_GT(g_verdicts[verdict], 300) << "verdict " << static_cast<int>(verdict);
  }
  EXPECT_GT(g_changes, 300);
}

}  // namespace
}  // namespace gpumux::core
