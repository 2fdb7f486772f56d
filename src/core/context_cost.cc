// SPDX-License-Identifier: Apache-2.0
#include "core/context_cost.h"

#include <algorithm>

#include "base/units.h"

namespace gpumux::core {

namespace {

struct Row {
  std::string_view model;
  ContextCost cost;
};

// Measured with driver 580.159.04: a context moves the process's own figure by
// 543162368 and the device's by 552402944 for the first, 548995072 for others.
constexpr Row kMeasured[] = {
    {"H200",
     {.context_bytes = 543162368,
      .driver_share_bytes = 5832704,
      .first_share_bytes = 3407872,
      .mps_server_bytes = 80 * kMiB,  // 66 to 75 MiB were seen
      .measured = true}},
};

// Above every context seen in the field (300 to 560 MiB).
constexpr ContextCost kGuess{.context_bytes = 600 * kMiB,
                             .driver_share_bytes = 6 * kMiB,
                             .first_share_bytes = 4 * kMiB,
                             .mps_server_bytes = 128 * kMiB,
                             .measured = false};

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// No call is under way: what was granted is committed or free.
bool Quiet(const OverheadReading& reading) {
  const uint64_t committed = reading.committed_after_bytes;
  const uint64_t free = std::min(reading.free_before_bytes, reading.free_after_bytes);
  return reading.committed_before_bytes == committed &&
         reading.free_before_bytes == reading.free_after_bytes && committed <= reading.granted_bytes &&
         reading.granted_bytes - committed == free;
}

}  // namespace

ContextCost ContextCostOf(std::string_view gpu_name) {
  for (const Row& row : kMeasured) {
    if (gpu_name.find(row.model) != std::string_view::npos) return row.cost;
  }
  return kGuess;
}

Overhead AssessOverhead(const OverheadReading& reading, const ContextCost& cost, uint64_t previous_real_bytes,
                        uint64_t room_bytes) {
  const uint64_t pending = reading.pending_contexts * cost.ChargeBytes();
  if (reading.contexts == 0) {
    // Without a context the driver holds nothing for the process. If NVML shows
    // bytes all the same, the guard missed how the context came to be.
    const uint64_t beyond = Minus(reading.own_bytes.value_or(0), reading.granted_bytes);
    const uint64_t real = reading.pending_contexts == 0 ? beyond : 0;
    return {real, std::max(real, pending)};
  }
  uint64_t found = 0;
  if (reading.own_bytes) {
    const uint64_t committed = reading.committed_after_bytes;
    const uint64_t free = std::min(reading.free_before_bytes, reading.free_after_bytes);
    if (Quiet(reading)) {
      found = Minus(*reading.own_bytes, committed);
    } else {
      const uint64_t least = Minus(*reading.own_bytes, Minus(reading.granted_bytes, free));
      found = std::max(least, Minus(previous_real_bytes, reading.contexts * cost.driver_share_bytes));
    }
  }
  found = std::max(found, reading.contexts * cost.context_bytes);
  const uint64_t real = found + reading.contexts * cost.driver_share_bytes;
  const uint64_t sure = real + pending;
  const uint64_t allowance = std::min(kLazyCodeAllowanceBytes, Minus(room_bytes, sure));
  return {real, sure + allowance};
}

void LearnContextCost(const OverheadReading& reading, ContextCost& cost) {
  const bool alone = reading.contexts == 1 && reading.pending_contexts == 0 && Quiet(reading) &&
                     reading.committed_after_bytes == 0;
  if (cost.measured || !alone || reading.own_bytes.value_or(0) == 0) return;
  cost.context_bytes = *reading.own_bytes;
  cost.measured = true;
}

}  // namespace gpumux::core
