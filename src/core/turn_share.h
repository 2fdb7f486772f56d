// SPDX-License-Identifier: Apache-2.0
//
// Who gets which part of a GPU's time, in mode turns. Of those that want a GPU,
// each gets weight x level, but never less than its minimum or more than its
// maximum; the level is such that all is given out. So a minimum never makes a
// tenant get less than it would without, and who has none gets an equal part of
// what is left.
#pragma once

#include <span>

namespace gpumux::core {

// What a tenant of mode turns has of each of its GPUs' time.
struct TurnShare {
  double weight = 1;  // above 0
  double min_ratio = 0;
  double max_ratio = 1;  // at least the minimum, above 0

  bool HasCeiling() const { return max_ratio < 1; }
  bool operator==(const TurnShare&) const = default;
};

// Each one's part of a GPU while exactly these want it; their sum is at most 1.
// Minima of more than 1 together are cut in proportion.
void DivideGpu(std::span<const TurnShare> wanting, std::span<double> parts);

}  // namespace gpumux::core
