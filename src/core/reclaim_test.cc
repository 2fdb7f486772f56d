// SPDX-License-Identifier: Apache-2.0
#include "core/reclaim.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace gpumux::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Indices = std::vector<size_t>;

TEST(WhomToAsk, AsksTheLargestAndNoMoreThanCouldBeEnough) {
  EXPECT_EQ(WhomToAsk({10, 40, 20}, 30), (Indices{1}));
  EXPECT_EQ(WhomToAsk({10, 40, 20}, 40), (Indices{1}));
  EXPECT_EQ(WhomToAsk({10, 40, 20}, 41), (Indices{1, 2}));
  EXPECT_EQ(WhomToAsk({10, 40, 20}, 61), (Indices{1, 2, 0}));
}

TEST(WhomToAsk, DisturbsNobodyForWhatAllTogetherCannotGive) {
  EXPECT_EQ(WhomToAsk({10, 40, 20}, 71), Indices{});
  EXPECT_EQ(WhomToAsk({}, 1), Indices{});
  EXPECT_EQ(WhomToAsk({0, 0}, 1), Indices{});
  // Sums of what processes claim do not wrap.
  EXPECT_EQ(WhomToAsk({UINT64_MAX, UINT64_MAX}, UINT64_MAX), (Indices{0}));
}

TEST(AskRecord, HasOneQuestionAtATime) {
  AskRecord record;
  const nanoseconds t0 = seconds(100);
  EXPECT_TRUE(record.MayAsk(t0));
  EXPECT_FALSE(record.Awaited(t0));
  record.Asked(t0, kGiB);
  EXPECT_FALSE(record.MayAsk(t0));
  EXPECT_TRUE(record.Awaited(t0 + milliseconds(2999)));
  // Late: nobody waits for it any more, and it is not asked either.
  EXPECT_FALSE(record.Awaited(t0 + seconds(3)));
  EXPECT_FALSE(record.MayAsk(t0 + seconds(1000)));
  record.Answered(t0 + seconds(1000), 0);
  EXPECT_FALSE(record.MayAsk(t0 + milliseconds(1004999)));
  EXPECT_TRUE(record.MayAsk(t0 + seconds(1005)));
}

TEST(AskRecord, SparesWhoDoesNotHaveItForLongerEachTime) {
  AskRecord record;
  nanoseconds now = seconds(1);
  for (const int spared : {5, 10, 20, 40, 80, 80}) {
    record.Asked(now, kGiB);
    record.Answered(now, kGiB - 1);
    EXPECT_FALSE(record.MayAsk(now + seconds(spared) - milliseconds(1))) << spared;
    now += seconds(spared);
    EXPECT_TRUE(record.MayAsk(now)) << spared;
  }
  record.Asked(now, kGiB);
  record.Answered(now, kGiB);
  EXPECT_FALSE(record.MayAsk(now + milliseconds(249)));
  EXPECT_TRUE(record.MayAsk(now + milliseconds(250)));
  record.Asked(now, kGiB);
  record.Answered(now, 0);
  EXPECT_TRUE(record.MayAsk(now + seconds(5)));
}

GpuSnapshot Gpu(unsigned index, uint64_t promisable_bytes) {
  GpuSnapshot gpu;
  gpu.uuid.bytes[0] = static_cast<uint8_t>(index + 1);
  gpu.index = index;
  gpu.name = "H200";
  gpu.total_bytes = 100 * kGiB;
  gpu.promisable_bytes = promisable_bytes;
  gpu.mode = Mode::kTimeslice;
  gpu.tenants = 1;
  gpu.context.context_bytes = kGiB / 2;
  return gpu;
}

Queue::Waiting Waits(uint64_t id, uint64_t bytes) {
  Queue::Waiting waiting;
  waiting.request.id = id;
  waiting.request.mem = MemorySize{.bytes = bytes};
  return waiting;
}

std::vector<std::tuple<uint64_t, size_t, uint64_t>> Lack(const std::deque<Queue::Waiting>& waiting,
                                                         const std::vector<GpuSnapshot>& gpus,
                                                         const std::vector<uint64_t>& could_give) {
  std::vector<std::tuple<uint64_t, size_t, uint64_t>> all;
  for (const auto& each : RoomThatWaitersLack(waiting, gpus, could_give))
    all.emplace_back(each.request_id, each.gpu, each.bytes);
  return all;
}

using Lacking = std::vector<std::tuple<uint64_t, size_t, uint64_t>>;

TEST(RoomThatWaitersLack, IsWhatIsMissingWhereItCouldBeGiven) {
  EXPECT_EQ(Lack({Waits(7, 30 * kGiB)}, {Gpu(0, 10 * kGiB)}, {25 * kGiB}), (Lacking{{7, 0, 20 * kGiB}}));
  // What they could give is not enough: nobody is asked.
  EXPECT_EQ(Lack({Waits(7, 30 * kGiB)}, {Gpu(0, 10 * kGiB)}, {19 * kGiB}), Lacking{});
  // Only the GPU where it could be had.
  EXPECT_EQ(Lack({Waits(7, 30 * kGiB)}, {Gpu(0, 20 * kGiB), Gpu(1, 10 * kGiB)}, {0, 25 * kGiB}),
            (Lacking{{7, 1, 20 * kGiB}}));
}

TEST(RoomThatWaitersLack, IsOfTheFirstWhoWaitsForThatGpu) {
  EXPECT_EQ(Lack({Waits(7, 30 * kGiB), Waits(8, 20 * kGiB)}, {Gpu(0, 10 * kGiB)}, {25 * kGiB}),
            (Lacking{{7, 0, 20 * kGiB}}));
  // Whoever is behind one that cannot be helped is not helped past it.
  EXPECT_EQ(Lack({Waits(7, 60 * kGiB), Waits(8, 20 * kGiB)}, {Gpu(0, 10 * kGiB)}, {25 * kGiB}), Lacking{});
}

TEST(RoomThatWaitersLack, CountsTheLeastThatAnybodyNeeds) {
  Queue::Waiting no_guarantee;
  no_guarantee.request.id = 9;
  EXPECT_EQ(Lack({no_guarantee}, {Gpu(0, 0)}, {kGiB}),
            (Lacking{{9, 0, Gpu(0, 0).context.ChargeBytes() + kMinimumBeyondContextBytes}}));
}

}  // namespace
}  // namespace gpumux::core
