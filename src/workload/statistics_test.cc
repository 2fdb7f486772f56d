// SPDX-License-Identifier: Apache-2.0
#include "workload/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gpumux::workload {
namespace {

TEST(Summary, PercentilesAreNearestRanks) {
  std::vector<int64_t> latencies;
  for (int i = 100; i >= 1; --i) latencies.push_back(i * 1000);
  const Summary summary = Summarise(latencies, 2);
  EXPECT_EQ(summary.requests, 100u);
  EXPECT_DOUBLE_EQ(summary.p50_us, 50);
  EXPECT_DOUBLE_EQ(summary.p99_us, 99);
  EXPECT_DOUBLE_EQ(summary.max_us, 100);
  EXPECT_DOUBLE_EQ(summary.rate_per_s, 50);
}

TEST(Summary, OfOneAndOfNone) {
  std::vector<int64_t> one = {1500};
  EXPECT_DOUBLE_EQ(Summarise(one, 1).p50_us, 1.5);
  EXPECT_DOUBLE_EQ(Summarise(one, 1).p99_us, 1.5);
  std::vector<int64_t> none;
  EXPECT_EQ(Summarise(none, 1).requests, 0u);
}

TEST(Poisson, HasTheRateTheVarianceAndTheSeedThatWereAskedFor) {
  const auto arrivals = PoissonArrivals(1000, 100, 1);
  // 100,000 expected; six standard deviations are 1,900.
  EXPECT_NEAR(static_cast<double>(arrivals.size()), 100'000, 1900);
  double sum = 0, squares = 0;
  for (size_t i = 1; i < arrivals.size(); ++i) {
    ASSERT_GE(arrivals[i], arrivals[i - 1]);
    const double gap = static_cast<double>(arrivals[i] - arrivals[i - 1]) / 1e6;  // ms: mean 1
    sum += gap;
    squares += gap * gap;
  }
  const double n = static_cast<double>(arrivals.size() - 1);
  EXPECT_NEAR(std::sqrt(squares / n - (sum / n) * (sum / n)), 1.0, 0.02);  // exponential: deviation = mean
  EXPECT_EQ(arrivals, PoissonArrivals(1000, 100, 1));
  EXPECT_NE(arrivals, PoissonArrivals(1000, 100, 2));
}

}  // namespace
}  // namespace gpumux::workload
