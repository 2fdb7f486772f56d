// SPDX-License-Identifier: Apache-2.0
#include "guard/segment_budget.h"

#include <gtest/gtest.h>

namespace gpumux::guard {
namespace {

constexpr int64_t kBudgetNs = 100'000;

// Of `launches` kernels of one length: how many waits.
int WaitsOf(int launches, int64_t ns, bool latency, int64_t budget_ns = kBudgetNs) {
  SegmentBudget budget;
  int waits = 0;
  for (int i = 0; i < launches; i++) waits += budget.TakesWait(budget_ns, ns, latency);
  return waits;
}

TEST(SegmentBudget, ShortKernelsShareASegmentOfTheBudget) {
  EXPECT_EQ(WaitsOf(1000, 20'000, true), 200);
  // A little longer than they were thought to be: not one kernel less each time.
  EXPECT_EQ(WaitsOf(1000, 21'000, true), 200);
  EXPECT_EQ(WaitsOf(1000, 1'000, true), 10);
}

TEST(SegmentBudget, LongOnesHaveASegmentEach) {
  EXPECT_EQ(WaitsOf(1000, 50'000, true), 1000);
  EXPECT_EQ(WaitsOf(1000, 2'000'000, true), 1000);
}

TEST(SegmentBudget, OnlyWhereSomebodyWaitsForThem) {
  EXPECT_EQ(WaitsOf(1000, 50'000, false, 500'000), 100);
  EXPECT_EQ(WaitsOf(1000, 200'000, false, 500'000), 334);  // three each: 600 us rather than 400
}

TEST(SegmentBudget, WhatNobodyKnowsWaitsAndEndsTheSegment) {
  SegmentBudget budget;
  EXPECT_TRUE(budget.TakesWait(kBudgetNs, 10'000, true));
  EXPECT_FALSE(budget.TakesWait(kBudgetNs, 10'000, true));
  EXPECT_TRUE(budget.TakesWait(kBudgetNs, 0, true));
  EXPECT_TRUE(budget.TakesWait(kBudgetNs, 10'000, true));
}

TEST(SegmentBudget, ALongOneAfterShortOnesWaits) {
  SegmentBudget budget;
  EXPECT_TRUE(budget.TakesWait(kBudgetNs, 10'000, true));
  EXPECT_FALSE(budget.TakesWait(kBudgetNs, 10'000, true));
  EXPECT_TRUE(budget.TakesWait(kBudgetNs, 90'000, true));
  // And what comes after it.
  EXPECT_TRUE(budget.TakesWait(kBudgetNs, 10'000, true));
}

TEST(SegmentBudget, OfMixedOnesTheBudgetIsKeptOnTheAverage) {
  SegmentBudget budget;
  int64_t sum = 0;
  int waits = 0;
  uint64_t seed = 1;
  for (int i = 0; i < 100'000; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const int64_t ns = 1'000 + static_cast<int64_t>((seed >> 33) % 38'000);
    sum += ns;
    waits += budget.TakesWait(kBudgetNs, ns, true);
  }
  const double each = static_cast<double>(sum) / waits;
  EXPECT_GT(each, 0.9 * kBudgetNs);
  EXPECT_LT(each, 1.1 * kBudgetNs);
}

}  // namespace
}  // namespace gpumux::guard
