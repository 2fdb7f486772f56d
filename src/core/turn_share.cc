// SPDX-License-Identifier: Apache-2.0
#include "core/turn_share.h"

#include <algorithm>

namespace gpumux::core {

void DivideGpu(std::span<const TurnShare> wanting, std::span<double> parts) {
  if (wanting.empty()) return;
  double minima = 0, lightest = wanting[0].weight;
  for (const auto& share : wanting) {
    minima += share.min_ratio;
    lightest = std::min(lightest, share.weight);
  }
  const auto divide = [&](double level) {
    double sum = 0;
    for (size_t i = 0; i < wanting.size(); ++i) {
      const auto& share = wanting[i];
      const double low = minima > 1 ? share.min_ratio / minima : share.min_ratio;
      parts[i] = std::max(low, std::min(level * share.weight, share.max_ratio));
      sum += parts[i];
    }
    return sum;
  };
  double low = 0, high = 1 / lightest;
  if (divide(high) <= 1) return;  // all at their maxima
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (divide(middle) > 1 ? high : low) = middle;
  }
  divide(low);
}

}  // namespace gpumux::core
