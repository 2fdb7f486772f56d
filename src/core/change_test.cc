// SPDX-License-Identifier: Apache-2.0
#include "core/change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::core {
namespace {

using std::chrono::hours;
using testing::HasSubstr;

GpuSnapshot Gpu(unsigned index, uint64_t promisable) {
  GpuSnapshot gpu;
  gpu.uuid.bytes[0] = static_cast<uint8_t>(index + 1);
  gpu.index = index;
  gpu.name = "NVIDIA H200";
  gpu.total_bytes = 140 * kGiB;
  gpu.promisable_bytes = promisable;
  gpu.guaranteed_bytes = 140 * kGiB - promisable;
  gpu.mode = Mode::kTimeslice;
  gpu.tenants = 1;
  gpu.context = ContextCostOf(gpu.name);
  return gpu;
}

// 20 GiB guaranteed, up to 40, of each of two GPUs; 30 are used.
Changeable Tenant() {
  return {.name = "train",
          .mode = Mode::kTimeslice,
          .shares = {{Gpu(0, 0).uuid, 20 * kGiB, 40 * kGiB}, {Gpu(1, 0).uuid, 20 * kGiB, 40 * kGiB}},
          .used_bytes = {30 * kGiB, 30 * kGiB},
          .time_limit = hours(2),
          .ran = hours(1)};
}

Change Memory(uint64_t bytes, std::optional<uint64_t> limit = {}) {
  Change change;
  change.mem = MemorySize{.bytes = bytes, .ratio = 0};
  if (limit) change.mem_limit = MemorySize{.bytes = *limit, .ratio = 0};
  return change;
}

Change Time(std::chrono::nanoseconds time) {
  Change change;
  change.time_limit = time;
  return change;
}

using Kept = std::map<gpu::Uuid, std::string>;

Result<std::vector<Share>> Judge(const Change& change, uint64_t promisable0, uint64_t promisable1,
                                 const Kept& kept = {}, const std::vector<Bound>& bounds = {}) {
  return JudgeChange(change, Tenant(), {Gpu(0, promisable0), Gpu(1, promisable1)}, bounds, kept);
}

TEST(Change, RaisesWhatIsPromisableBeyondWhatItHas) {
  // 30 GiB are charged already: 20 more on each.
  const auto raised = Judge(Memory(50 * kGiB), 20 * kGiB, 20 * kGiB);
  ASSERT_TRUE(raised) << raised.error().message;
  EXPECT_EQ((*raised)[1].guaranteed_bytes, 50 * kGiB);
  EXPECT_EQ((*raised)[1].limit_bytes, 50 * kGiB);
  // All or nothing: on the second there is not so much.
  const auto refused = Judge(Memory(50 * kGiB), 20 * kGiB, 20 * kGiB - 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kConflict);
  EXPECT_THAT(refused.error().message, HasSubstr("needs 20.0 GiB more on GPU 1"));
  EXPECT_THAT(refused.error().message, HasSubstr("can be promised (120.0 of 140.0 GiB guaranteed"));
  // What it uses beyond its guarantee takes nothing from anybody.
  EXPECT_TRUE(Judge(Memory(30 * kGiB), 0, 0, Kept{{Gpu(0, 0).uuid, "waits"}}));
}

TEST(Change, TakesALimitBelowWhatIsUsedOnlyIfAsked) {
  const auto refused = Judge(Memory(10 * kGiB, 25 * kGiB), 0, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            "train uses 30.0 GiB of GPU 0, more than the limit of 25.0 GiB that is asked for");
  EXPECT_THAT(refused.error().hint, HasSubstr("--as-it-frees"));
  Change change = Memory(10 * kGiB, 25 * kGiB);
  change.as_it_frees = true;
  EXPECT_EQ((*Judge(change, 0, 0))[0].limit_bytes, 25 * kGiB);
}

TEST(Change, GivesAwayNothingThatOthersWaitFor) {
  const Kept kept = {{Gpu(1, 0).uuid, "serve"}};
  const auto refused = Judge(Memory(40 * kGiB), 100 * kGiB, 100 * kGiB, kept);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kConflict);
  EXPECT_EQ(refused.error().message, "GPU 1 is kept for serve, which waits in the queue");
  // Nor may it use more of it than those were told.
  EXPECT_FALSE(Judge(Memory(20 * kGiB, 41 * kGiB), 100 * kGiB, 100 * kGiB, kept));
  EXPECT_TRUE(Judge(Memory(20 * kGiB, 40 * kGiB), 100 * kGiB, 100 * kGiB, kept));
}

TEST(Change, KeepsQuotas) {
  Bound bound{.whose = "user anna",
              .key = "quota.user.anna",
              .quota = {.guaranteed_bytes = 80 * kGiB, .tenants = {}, .gpus = {}},
              .use = {}};
  bound.use.guaranteed_bytes = 60 * kGiB;  // 40 of them its own
  EXPECT_TRUE(Judge(Memory(30 * kGiB), 100 * kGiB, 100 * kGiB, {}, {bound}));
  const auto refused = Judge(Memory(31 * kGiB), 100 * kGiB, 100 * kGiB, {}, {bound});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDenied);
  EXPECT_THAT(refused.error().message, HasSubstr("user anna has 60.0 GiB of 80.0 GiB guaranteed"));
}

TEST(Change, RefusesWhatNoGpuPromises) {
  EXPECT_EQ(Judge(Memory(200 * kGiB), 0, 0).error().code, Code::kDenied);
  EXPECT_EQ(Judge(Memory(100 * kMiB), 0, 0).error().code, Code::kDenied);
  EXPECT_EQ(Judge(Memory(40 * kGiB, 30 * kGiB), 0, 0).error().code, Code::kInvalid);
  Changeable exclusive = Tenant();
  exclusive.mode = Mode::kExclusive;
  EXPECT_EQ(JudgeChange(Memory(20 * kGiB), exclusive, {Gpu(0, 0), Gpu(1, 0)}, {}, {}).error().code,
            Code::kUnsupported);
}

TEST(Change, ExtendsATimeOnWhichNobodyCounts) {
  const Kept kept = {{Gpu(1, 0).uuid, "serve"}};
  EXPECT_TRUE(Judge(Time(hours(3)), 0, 0));
  EXPECT_EQ(Judge(Time(hours(3)), 0, 0, kept).error().code, Code::kConflict);
  EXPECT_TRUE(Judge(Time(std::chrono::minutes(90)), 0, 0, kept));
  // Over already.
  EXPECT_EQ(Judge(Time(std::chrono::minutes(59)), 0, 0).error().code, Code::kConflict);
}

}  // namespace
}  // namespace gpumux::core
