// SPDX-License-Identifier: Apache-2.0
#include "daemon/mig_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/testing/fake_mig.h"

namespace gpumux::daemon {
namespace {

using core::mig::Layout;
using core::mig::Step;
using testing::HasSubstr;

constexpr uint32_t k1g = 19, k2g = 14, k3g = 9, k4g = 5;

const gpu::MigModel& H200() { return **gpu::FindMigModel("H200"); }

// An H200 with 1g at 0 and 1 (the second with a compute instance fewer than it could have), a 3g at 4 in
// three parts.
class MigStepsTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(mig_); }
  static void Make(FakeMig& mig) {
    for (const auto& [profile, start, size] : {std::tuple{k1g, 0u, 1u}, {k1g, 1u, 1u}, {k3g, 4u, 4u}}) {
      const auto made = mig.Create(kGpu, profile, gpu::MigPlacement{start, size});
      for (unsigned i = 0; i < (profile == k3g ? 3u : 1u); ++i) (void)mig.CreateCompute(kGpu, made->id, 1);
    }
    mig.changes = 0;
  }
  // Carries out what leads to `wanted` as the service does; what was told of a failure.
  static std::string Apply(FakeMig& mig, const Layout& wanted) {
    MigSteps steps(mig, kGpu, H200());
    const auto before = *steps.Look();
    steps.Remember(before);
    std::vector<core::mig::Present> present;
    for (const MigPart& part : before) present.push_back({part.instance});
    const auto plan = core::mig::StepsTo(H200(), present, wanted);
    EXPECT_TRUE(plan);
    std::vector<Step> done;
    for (const Step& step : plan->steps) {
      if (const Status carried = steps.Do(step); !carried) {
        std::string told = carried.error().message;
        for (const std::string& left : steps.PutBack(done)) told += "; not put back: " + left;
        return told;
      }
      done.push_back(step);
    }
    return "";
  }
  static std::vector<MigPart> Look(FakeMig& mig) { return *MigSteps(mig, kGpu, H200()).Look(); }

  static constexpr gpu::Uuid kGpu{};
  FakeMig mig_{H200()};
  const Layout wanted_{{0, k2g}, {2, k1g}, {4, k3g}};
};

TEST_F(MigStepsTest, MakesWhatIsWantedAndLeavesTheRestAlone) {
  const auto before = mig_.instances();
  EXPECT_EQ(Apply(mig_, wanted_), "");
  EXPECT_EQ(LayoutOf(Look(mig_)), (Layout{{0, k2g}, {2, k1g}, {4, k3g}}));
  // The 3g in three parts is the very same instance.
  for (const auto& [id, each] : before) {
    if (each.placed.profile != k3g) continue;
    EXPECT_EQ(mig_.instances().at(id).compute, each.compute);
  }
  // What was made has one compute instance of all of it.
  for (const MigPart& part : Look(mig_)) {
    if (part.instance.profile != k2g) continue;
    EXPECT_EQ(part.compute, std::vector<uint32_t>{2});
  }
}

// Each call fails once, all else works: everything is as before, compute instances too.
TEST_F(MigStepsTest, WhateverFailsOnceIsPutBack) {
  (void)Apply(mig_, wanted_);
  const unsigned calls = mig_.changes;
  ASSERT_GT(calls, 6u);
  for (unsigned call = 1; call <= calls; ++call) {
    FakeMig mig(H200());
    Make(mig);
    const auto before = Look(mig);
    mig.fail_at = call;
    const std::string told = Apply(mig, wanted_);
    EXPECT_THAT(told, HasSubstr("the driver failed as ordered")) << call;
    EXPECT_THAT(told, Not(HasSubstr("left behind"))) << call;
    EXPECT_EQ(Look(mig), before) << call << ": " << told;
  }
}

// From each call on nothing works any more: what is missing then is named, each instance.
TEST_F(MigStepsTest, WhatCannotBePutBackIsNamed) {
  (void)Apply(mig_, wanted_);
  const unsigned calls = mig_.changes;
  for (unsigned call = 1; call <= calls; ++call) {
    FakeMig mig(H200());
    Make(mig);
    const auto before = Look(mig);
    mig.fail_at = call;
    mig.failing = 1000;
    const std::string told = Apply(mig, wanted_);
    const auto after = Look(mig);
    for (const MigPart& part : before) {
      if (std::ranges::count(after, part) > 0) continue;
      EXPECT_THAT(told, HasSubstr(core::mig::Name(H200(), part.instance))) << call << ": " << told;
    }
    for (const MigPart& part : after) {
      if (std::ranges::count(before, part) > 0) continue;
      EXPECT_THAT(told, HasSubstr(core::mig::Name(H200(), part.instance))) << call << ": " << told;
    }
  }
}

TEST_F(MigStepsTest, AnInstanceThatSomebodyElseRemovedIsSaidToBeGone) {
  MigSteps steps(mig_, kGpu, H200());
  const Status done = steps.Do({Step::What::kDestroy, {3, k1g}});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Code::kNotFound);
  EXPECT_THAT(done.error().message, HasSubstr("destroy 1g.18gb at 3: there is no 1g.18gb at 3 any more"));
}

}  // namespace
}  // namespace gpumux::daemon
