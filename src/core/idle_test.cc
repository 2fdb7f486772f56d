// SPDX-License-Identifier: Apache-2.0
#include "core/idle.h"

#include <gtest/gtest.h>

namespace gpumux::core {
namespace {

using namespace std::chrono_literals;

constexpr IdlePolicy kPolicy{.action = IdleAction::kNotify, .after = 10min};

TEST(IdleStretch, BeginsAtTheLookThatLastFoundALaunch) {
  IdleStretch idle;
  EXPECT_EQ(idle.Lasted(), std::nullopt);
  idle.Look(100s, 7);
  EXPECT_EQ(idle.Lasted(), 0s);
  idle.Look(130s, 7);
  EXPECT_EQ(idle.Lasted(), 30s);
  idle.Look(131s, 8);
  EXPECT_EQ(idle.Lasted(), 0s);
  idle.Look(140s, 8);
  EXPECT_EQ(idle.Lasted(), 9s);
  idle.Look(141s, 2);  // another program in its process: counted anew
  EXPECT_EQ(idle.Lasted(), 0s);
  EXPECT_EQ(idle.Total(), 39s);
}

TEST(IdleStretch, AddsUpHoweverOftenItIsLookedAt) {
  IdleStretch idle(100s);  // those of before
  EXPECT_EQ(idle.Lasted(), std::nullopt);
  for (int second = 0; second <= 5; ++second) idle.Look(std::chrono::seconds(second), 1);
  EXPECT_EQ(idle.Lasted(), 5s);
  EXPECT_EQ(idle.Total(), 105s);
}

TEST(IdleStretch, IsNoneWhileNothingIsHeld) {
  IdleStretch idle;
  idle.Look(100s, 7);
  idle.End();
  EXPECT_EQ(idle.Lasted(), std::nullopt);
  idle.Look(200s, 7);
  EXPECT_EQ(idle.Lasted(), 0s) << "without memory it was not idle";
  EXPECT_EQ(idle.Total(), 0s);
}

TEST(IdleStretch, IsDueOnceAndOverOnce) {
  IdleStretch idle;
  idle.Look(0s, 1);
  idle.Look(10min - 1ns, 1);
  EXPECT_FALSE(idle.BecomesDue(kPolicy));
  idle.Look(10min, 1);
  EXPECT_TRUE(idle.BecomesDue(kPolicy));
  EXPECT_FALSE(idle.BecomesDue(kPolicy));
  idle.Look(1h, 1);
  EXPECT_FALSE(idle.BecomesDue(kPolicy));
  EXPECT_FALSE(idle.TakeOver());
  idle.Look(2h, 2);
  EXPECT_TRUE(idle.TakeOver());
  EXPECT_FALSE(idle.TakeOver());
  // The next stretch is another one.
  idle.Look(2h + 10min, 2);
  EXPECT_TRUE(idle.BecomesDue(kPolicy));
  idle.End();
  EXPECT_TRUE(idle.TakeOver());
}

TEST(IdleStretch, LastsOnlyWhileTheCountIsTheSame) {
  IdleStretch idle;
  EXPECT_FALSE(idle.LastsFor(0s, 0));
  idle.Look(0s, 5);
  idle.Look(2s, 5);
  EXPECT_TRUE(idle.LastsFor(2s, 5));
  EXPECT_FALSE(idle.LastsFor(3s, 5));
  // It has launched since the last look.
  EXPECT_FALSE(idle.LastsFor(2s, 6));
  idle.End();
  EXPECT_FALSE(idle.LastsFor(0s, 5));
}

TEST(IdleStretch, ThatWasNotDueIsNotOver) {
  IdleStretch idle;
  idle.Look(0s, 1);
  idle.Look(1min, 1);
  EXPECT_FALSE(idle.BecomesDue(kPolicy));
  idle.Look(2min, 2);
  EXPECT_FALSE(idle.TakeOver());
  idle.Look(1h, 2);
  EXPECT_FALSE(idle.BecomesDue({.action = IdleAction::kOff, .after = 0s}));
}

}  // namespace
}  // namespace gpumux::core
