// SPDX-License-Identifier: Apache-2.0
#include "core/reclaim.h"

#include <algorithm>
#include <numeric>

namespace gpumux::core {

std::vector<size_t> WhomToAsk(const std::vector<uint64_t>& could_give_bytes, uint64_t wanted_bytes) {
  std::vector<size_t> order(could_give_bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return could_give_bytes[a] > could_give_bytes[b]; });
  uint64_t left = wanted_bytes;
  for (size_t asked = 0; asked < order.size(); ++asked) {
    const uint64_t could = could_give_bytes[order[asked]];
    if (could == 0) break;
    if (could >= left) {
      order.resize(asked + 1);
      return order;
    }
    left -= could;
  }
  return {};
}

std::vector<RoomWanted> RoomThatWaitersLack(const std::deque<Queue::Waiting>& waiting,
                                            std::vector<GpuSnapshot> gpus,
                                            const std::vector<uint64_t>& could_give_bytes) {
  std::vector<uint64_t> promisable;
  for (size_t i = 0; i < gpus.size(); ++i) {
    promisable.push_back(gpus[i].promisable_bytes);
    if (!gpus[i].Closed()) gpus[i].promisable_bytes += could_give_bytes[i];
  }
  std::vector<RoomWanted> lacking;
  std::set<gpu::Uuid> taken;
  for (const Queue::Waiting& each : waiting) {
    // Bytes do not help who waits for its owner's own tenants.
    if (each.wait.for_quota) continue;
    const Decision decision = Admit(each.request, gpus, taken);
    if (const auto* wait = std::get_if<Wait>(&decision)) taken.insert(wait->wants.begin(), wait->wants.end());
    const auto* placement = std::get_if<Placement>(&decision);
    if (!placement) continue;
    for (const Share& share : placement->shares) {
      const auto at =
          std::find_if(gpus.begin(), gpus.end(), [&](const auto& g) { return g.uuid == share.gpu; });
      const size_t index = static_cast<size_t>(at - gpus.begin());
      // Without a guarantee there must be room for a context and a little more.
      const uint64_t needed =
          std::max(share.guaranteed_bytes, at->context.ChargeBytes() + kMinimumBeyondContextBytes);
      if (needed > promisable[index]) lacking.push_back({each.request.id, index, needed - promisable[index]});
      taken.insert(share.gpu);
    }
  }
  return lacking;
}

}  // namespace gpumux::core
