// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/turns.h"

namespace gpumux::daemon {

// How long turns were waited for. Written by the turn thread, read by the loop; each
// number by itself.
struct TurnWaits {
  static constexpr std::array<double, 12> kBoundsSeconds = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.04,
                                                            0.08,  0.16,   0.32,  0.64, 1.28, 5};

  void Observe(core::Turns::Time wait) {
    const double seconds = std::chrono::duration<double>(wait).count();
    const auto at = std::ranges::lower_bound(kBoundsSeconds, seconds);
    counts[static_cast<size_t>(at - kBoundsSeconds.begin())].fetch_add(1, std::memory_order_relaxed);
    sum_ns.fetch_add(wait.count(), std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, kBoundsSeconds.size() + 1> counts = {};
  std::atomic<int64_t> sum_ns = 0;
};

}  // namespace gpumux::daemon
