// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_totals.h"

#include <gtest/gtest.h>

#include <numeric>

namespace gpumux::daemon {
namespace {

TEST(MetricsTotals, GoOnWhenATenantHasEnded) {
  MetricsTotals totals;
  totals.Look(
      "a", {.own_limit = 2, .turns = 5, .gate_closed_ns = 1500000000, .gpu_ns = {{0, 3000000000}, {3, 1}}});
  totals.Look(
      "b", {.own_limit = 1, .device_full = 4, .own_part = 9, .gate_forced = 2, .gpu_ns = {{0, 500000000}}});
  EXPECT_EQ(totals.own_limit(), 3u);
  EXPECT_DOUBLE_EQ(totals.GpuSeconds(0), 3.5);
  totals.Look("a", {.own_limit = 3, .turns = 6, .gate_closed_ns = 2500000000, .gpu_ns = {{0, 4000000000}}});
  totals.Ended("a", "completed", 10, false);
  EXPECT_EQ(totals.own_limit(), 4u);
  EXPECT_EQ(totals.device_full(), 4u);
  EXPECT_EQ(totals.own_part(), 9u);
  EXPECT_EQ(totals.turns(), 6u);
  EXPECT_EQ(totals.gate_forced(), 2u);
  EXPECT_DOUBLE_EQ(totals.gate_closed_seconds(), 2.5);
  EXPECT_DOUBLE_EQ(totals.GpuSeconds(0), 4.5);
  EXPECT_DOUBLE_EQ(totals.GpuSeconds(3), 1e-9);
  EXPECT_DOUBLE_EQ(totals.GpuSeconds(1), 0);
}

// A tenant's page is its processes' to write.
TEST(MetricsTotals, NeverGoBackWhateverAPageSays) {
  MetricsTotals totals;
  totals.Look("a", {.own_limit = 7});
  totals.Look("a", {.own_limit = 0});
  EXPECT_EQ(totals.own_limit(), 7u);
  totals.Look("a", {.own_limit = 7});
  EXPECT_EQ(totals.own_limit(), 7u) << "what was counted is not counted again";
  totals.Look("a", {.own_limit = UINT64_MAX});
  totals.Look("b", {.own_limit = UINT64_MAX});
  EXPECT_EQ(totals.own_limit(), UINT64_MAX);
}

TEST(MetricsTotals, CountEndsAndCompletionTimes) {
  MetricsTotals totals;
  totals.Ended("a", "completed", 60, false);
  totals.Ended("b", "completed", 1e9, false);
  totals.Ended("c", "failed", 0.1, false);
  totals.Ended("d", "released", 5, true);
  EXPECT_EQ(totals.ended().at("completed"), 2u);
  EXPECT_EQ(totals.ended().at("failed"), 1u);
  EXPECT_EQ(totals.ended().at("released"), 1u);
  const Histogram& times = totals.completion();
  EXPECT_EQ(std::accumulate(times.counts.begin(), times.counts.end(), uint64_t{0}), 3u);
  EXPECT_EQ(times.counts.front(), 1u);
  EXPECT_EQ(times.counts.back(), 1u);
  EXPECT_EQ(times.counts[3], 1u) << "a bound is in its own bucket";
  EXPECT_DOUBLE_EQ(times.sum, 1e9 + 60.1);
}

}  // namespace
}  // namespace gpumux::daemon
