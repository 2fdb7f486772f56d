// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpumux::workload {

struct Summary {
  uint64_t requests = 0;
  double rate_per_s = 0;  // finished requests by the time from the first start to the last end
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
  double service_p50_us = 0;  // from the first launch of a request; RunLoad sets it
  double service_p99_us = 0;
};

// Latencies in nanoseconds, in any order (sorted in place). Percentiles are
// nearest-rank: a latency that really occurred.
Summary Summarise(std::vector<int64_t>& latencies_ns, double seconds);

// Arrival times in nanoseconds from 0 of a Poisson process of `rate` a second,
// up to `seconds`. The same seed gives the same arrivals everywhere.
std::vector<int64_t> PoissonArrivals(double rate, double seconds, uint64_t seed);

}  // namespace gpumux::workload
