// SPDX-License-Identifier: Apache-2.0
#include "workload/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace gpumux::workload {

Summary Summarise(std::vector<int64_t>& latencies_ns, double seconds) {
  Summary summary;
  summary.requests = latencies_ns.size();
  if (latencies_ns.empty()) return summary;
  std::sort(latencies_ns.begin(), latencies_ns.end());
  const auto rank = [&latencies_ns](double fraction) {
    const double n = std::ceil(fraction * static_cast<double>(latencies_ns.size()));
    const size_t index = static_cast<size_t>(std::max(1.0, n)) - 1;
    return static_cast<double>(latencies_ns[index]) / 1e3;
  };
  summary.p50_us = rank(0.50);
  summary.p99_us = rank(0.99);
  summary.max_us = rank(1);
  if (seconds > 0) summary.rate_per_s = static_cast<double>(summary.requests) / seconds;
  return summary;
}

std::vector<int64_t> PoissonArrivals(double rate, double seconds, uint64_t seed) {
  std::vector<int64_t> arrivals;
  // Not std::exponential_distribution, whose numbers differ between libraries.
  std::mt19937_64 random(seed);
  double now = 0;
  for (;;) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    now += -std::log1p(-uniform) / rate;
    if (now >= seconds) return arrivals;
    arrivals.push_back(static_cast<int64_t>(now * 1e9));
  }
}

}  // namespace gpumux::workload
