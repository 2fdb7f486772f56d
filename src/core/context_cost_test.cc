// SPDX-License-Identifier: Apache-2.0
#include "core/context_cost.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace gpumux::core {
namespace {

// Figures of an H200 with driver 580: NVML's own figure and the device's, per context.
constexpr uint64_t kOwn = 543162368;
constexpr uint64_t kShare = 548995072 - kOwn;
constexpr uint64_t kRoom = 40 * kGiB;

ContextCost H200() { return ContextCostOf("NVIDIA H200"); }

OverheadReading Quiet(uint64_t own, uint64_t committed, uint64_t free, uint32_t contexts = 1) {
  return {.contexts = contexts,
          .pending_contexts = 0,
          .own_bytes = own,
          .granted_bytes = committed + free,
          .committed_before_bytes = committed,
          .committed_after_bytes = committed,
          .free_before_bytes = free,
          .free_after_bytes = free};
}

TEST(ContextCost, IsTheMeasuredOneOnAnH200AndMoreWhereNotMeasured) {
  EXPECT_EQ(H200().ChargeBytes(), 548995072u);
  EXPECT_EQ(H200().ChargeBytes() + H200().first_share_bytes, 552402944u);
  EXPECT_TRUE(H200().measured);
  const ContextCost other = ContextCostOf("NVIDIA GeForce RTX 4090");
  EXPECT_FALSE(other.measured);
  EXPECT_GT(other.ChargeBytes(), H200().ChargeBytes());
}

TEST(ContextCost, OfAModelNotMeasuredIsWhatNvmlShowsOfAContextAlone) {
  ContextCost cost = ContextCostOf("NVIDIA L4");
  const ContextCost guess = cost;
  const auto learn = [&](OverheadReading reading) {
    LearnContextCost(reading, cost);
    return cost.measured;
  };
  // Two of them, memory besides, a call under way, nothing seen: not what one costs.
  EXPECT_FALSE(learn(Quiet(700 * kMiB, 0, 0, 2)));
  EXPECT_FALSE(learn(Quiet(400 * kMiB, 2 * kMiB, 0)));
  OverheadReading busy = Quiet(400 * kMiB, 0, 0);
  busy.granted_bytes = 64 * kMiB;
  EXPECT_FALSE(learn(busy));
  EXPECT_FALSE(learn(Quiet(0, 0, 0)));
  EXPECT_EQ(cost.ChargeBytes(), guess.ChargeBytes());
  // Free credit is nobody's call.
  EXPECT_TRUE(learn(Quiet(342 * kMiB, 0, 64 * kMiB)));
  EXPECT_EQ(cost.context_bytes, 342 * kMiB);
  EXPECT_EQ(cost.driver_share_bytes, guess.driver_share_bytes);
  // Once known it stays: a process with more has loaded code besides.
  learn(Quiet(500 * kMiB, 0, 0));
  EXPECT_EQ(cost.context_bytes, 342 * kMiB);
  ContextCost h200 = H200();
  LearnContextCost(Quiet(kOwn / 2, 0, 0), h200);
  EXPECT_EQ(h200.context_bytes, kOwn);
}

TEST(Overhead, IsNothingWithoutAContext) {
  OverheadReading reading;
  EXPECT_EQ(AssessOverhead(reading, H200(), kGiB, kRoom).charge_bytes, 0u);
  reading.own_bytes = 0;
  EXPECT_EQ(AssessOverhead(reading, H200(), kGiB, kRoom).charge_bytes, 0u);
}

TEST(Overhead, CountsWhatNvmlShowsThoughTheGuardSawNoContext) {
  OverheadReading reading;
  reading.own_bytes = 700 * kMiB;
  reading.granted_bytes = 100 * kMiB;
  EXPECT_EQ(AssessOverhead(reading, H200(), 0, kRoom).charge_bytes, 600 * kMiB);
}

TEST(Overhead, StaysAheadOfLazilyLoadedCode) {
  const Overhead bare = AssessOverhead(Quiet(kOwn + kGiB, kGiB, 0), H200(), 0, kRoom);
  EXPECT_EQ(bare.real_bytes, kOwn + kShare);
  EXPECT_EQ(bare.charge_bytes, kOwn + kShare + kLazyCodeAllowanceBytes);
  const Overhead loaded =
      AssessOverhead(Quiet(kOwn + 94 * kMiB + kGiB, kGiB, 64 * kMiB), H200(), bare.real_bytes, kRoom);
  EXPECT_EQ(loaded.charge_bytes, kOwn + kShare + 94 * kMiB + kLazyCodeAllowanceBytes);
}

TEST(Overhead, TakesTheAllowanceOnlyFromRoom) {
  const auto with_room = [](uint64_t room) {
    return AssessOverhead(Quiet(kOwn, 0, 0), H200(), 0, room).charge_bytes;
  };
  EXPECT_EQ(with_room(0), kOwn + kShare);
  EXPECT_EQ(with_room(kOwn + kShare + 5), kOwn + kShare + 5);
  EXPECT_EQ(with_room(UINT64_MAX), kOwn + kShare + kLazyCodeAllowanceBytes);
}

TEST(Overhead, IsTheContextsAtLeast) {
  // Managed memory is committed and not in NVML's figure.
  EXPECT_EQ(AssessOverhead(Quiet(kOwn, 10 * kGiB, 0), H200(), 0, 0).real_bytes, kOwn + kShare);
  OverheadReading unknown = Quiet(0, kGiB, 0, 2);
  unknown.own_bytes.reset();
  EXPECT_EQ(AssessOverhead(unknown, H200(), 0, 0).real_bytes, 2 * (kOwn + kShare));
}

TEST(Overhead, KeepsTheChargeOfAContextUnderWay) {
  OverheadReading reading;
  reading.pending_contexts = 1;
  EXPECT_EQ(AssessOverhead(reading, H200(), 0, 0).charge_bytes, kOwn + kShare);
  reading.own_bytes = 300 * kMiB;  // half made: its bytes are the charged ones
  EXPECT_EQ(AssessOverhead(reading, H200(), 0, 0).charge_bytes, kOwn + kShare);
}

TEST(Overhead, IsNotMisledByCallsUnderWay) {
  // A call of 2 GiB has its memory and did not commit it yet: not overhead.
  OverheadReading reading = Quiet(kOwn + 3 * kGiB, kGiB, 0);
  reading.granted_bytes = 3 * kGiB;
  EXPECT_EQ(AssessOverhead(reading, H200(), kOwn + kShare, 0).real_bytes, kOwn + kShare);
  // The same before the driver took it: what was known of loaded code stays.
  reading.own_bytes = kOwn + kGiB + 90 * kMiB;
  EXPECT_EQ(AssessOverhead(reading, H200(), kOwn + kShare + 90 * kMiB, 0).real_bytes,
            kOwn + kShare + 90 * kMiB);
  // More than all that was granted can only be overhead.
  reading.own_bytes = kOwn + 3 * kGiB + 50 * kMiB;
  EXPECT_EQ(AssessOverhead(reading, H200(), 0, 0).real_bytes, kOwn + kShare + 50 * kMiB);
}

}  // namespace
}  // namespace gpumux::core
