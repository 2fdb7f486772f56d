// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// How much work of a stream goes between two waits at the gate (a segment). Times in
// nanoseconds, of predicted work.
//
// A wait takes about 2 us of the stream's time on an H200. A latency-critical kernel waits for what is left
// of the kernel that runs: of a short one nearly nothing, since it comes in between that one and
// the next. So short ones share a segment up to the budget, and a long one, which a wait costs little of
// its time, counts double.
struct SegmentBudget {
  static constexpr int64_t kLongNs = 40'000;

  int64_t left_ns = 0;

  // Work of `takes_ns` comes next, 0: nobody knows how much. True: with a wait before it.
  // `latency`: somebody waits for its end.
  bool TakesWait(int64_t budget_ns, int64_t takes_ns, bool latency) {
    if (takes_ns <= 0) {
      left_ns = 0;
      return true;
    }
    const int64_t weight = latency && takes_ns >= kLongNs ? 2 * takes_ns : takes_ns;
    // Up to half of it more than the budget, as often as less: on the average it is kept.
    const bool fits = left_ns > 0 && weight / 2 <= left_ns;
    const int64_t rest = (fits ? left_ns : budget_ns) - weight;
    left_ns = rest > 0 ? rest : 0;
    return !fits;
  }
};

}  // namespace gpumux::guard
