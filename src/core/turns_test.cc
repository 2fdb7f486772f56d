// SPDX-License-Identifier: Apache-2.0
#include "core/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/testing/turns_world.h"

namespace gpumux::core {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Program;
using testing::World;
using Time = Turns::Time;

std::vector<double> Divide(const std::vector<TurnShare>& shares) {
  std::vector<double> parts(shares.size());
  DivideGpu(shares, parts);
  return parts;
}

auto Near(const std::vector<double>& values) {
  return ::testing::Pointwise(::testing::DoubleNear(1e-6), values);
}

TEST(TurnShares, DivideAGpuByWeightsMinimaAndMaxima) {
  EXPECT_THAT(Divide({{}, {}}), Near({0.5, 0.5}));
  EXPECT_THAT(Divide({{.weight = 3}, {.weight = 1}}), Near({0.75, 0.25}));
  EXPECT_THAT(Divide({{.min_ratio = 0.75}, {.min_ratio = 0.25}}), Near({0.75, 0.25}));
  // What is left is divided in equal parts; a minimum below them changes nothing.
  EXPECT_THAT(Divide({{.min_ratio = 0.6}, {}, {}}), Near({0.6, 0.2, 0.2}));
  EXPECT_THAT(Divide({{.min_ratio = 0.3}, {}}), Near({0.5, 0.5}));
  EXPECT_THAT(Divide({{.max_ratio = 0.2}, {}, {}}), Near({0.2, 0.4, 0.4}));
  EXPECT_THAT(Divide({{.min_ratio = 0.5, .max_ratio = 0.6}, {.max_ratio = 0.1}}), Near({0.6, 0.1}));
  // Minima that nobody should have admitted.
  EXPECT_THAT(Divide({{.min_ratio = 0.9}, {.min_ratio = 0.9}}), Near({0.5, 0.5}));
  EXPECT_THAT(Divide({{.max_ratio = 0.5}}), Near({0.5}));
}

struct Mix {
  std::vector<TurnShare> shares;
  std::vector<Time> kernels;  // in turn
  std::vector<double> parts;
};

void ExpectParts(const Mix& mix, std::optional<Time> think) {
  std::vector<Program> programs;
  for (size_t i = 0; i < mix.shares.size(); ++i)
    programs.push_back(
        {.share = mix.shares[i], .kernel = mix.kernels[i % mix.kernels.size()], .think = think});
  World world(programs);
  world.RunFor(seconds(6));
  std::string what = std::to_string(mix.shares.size()) + " tenants, kernels of";
  for (const Time kernel : mix.kernels) what += " " + std::to_string(kernel / microseconds(1)) + " us";
  for (size_t i = 0; i < programs.size(); ++i) {
    EXPECT_NEAR(world.Part(i), mix.parts[i], 0.01) << what << ", the one with number " << i;
    EXPECT_NEAR(static_cast<double>(world.turns.Billed(i).count()) / 6e9, mix.parts[i], 0.01) << what;
  }
}

TEST(Turns, GiveEachItsPartWhateverItsKernelsLength) {
  const std::vector<std::vector<Time>> lengths = {{microseconds(20)},
                                                  {microseconds(500)},
                                                  {milliseconds(5)},
                                                  {milliseconds(20)},
                                                  {microseconds(20), milliseconds(20)},
                                                  {milliseconds(20), microseconds(700), microseconds(20)}};
  const TurnShare any;
  for (const auto& kernels : lengths) {
    ExpectParts({{any, any}, kernels, {0.5, 0.5}}, {});
    ExpectParts({{{.weight = 3}, {.weight = 1}}, kernels, {0.75, 0.25}}, {});
    ExpectParts({{{.min_ratio = 0.25}, {.min_ratio = 0.75}}, kernels, {0.25, 0.75}}, {});
    ExpectParts({{{.weight = 5}, {.weight = 3}, {.weight = 2}}, kernels, {0.5, 0.3, 0.2}}, {});
    ExpectParts({std::vector<TurnShare>(8), kernels, std::vector<double>(8, 0.125)}, {});
    ExpectParts({{{.min_ratio = 0.4}, any, any, any, any, any, any, {.max_ratio = 0.06}},
                 kernels,
                 {0.4, 0.09, 0.09, 0.09, 0.09, 0.09, 0.09, 0.06}},
                {});
  }
}

TEST(Turns, GiveEachItsPartThatWaitsForEachKernel) {
  for (const Time kernel : {Time(microseconds(200)), Time(milliseconds(5)), Time(milliseconds(20))}) {
    ExpectParts({{{}, {}}, {kernel}, {0.5, 0.5}}, microseconds(10));
    ExpectParts({{{.weight = 3}, {.weight = 1}}, {kernel}, {0.75, 0.25}}, microseconds(10));
  }
}

TEST(Turns, GiveEachItsPartThatPausesAfterEachStep) {
  // Two trainings: the pause ends a turn early, and the other has one before the next.
  const Time steps[] = {milliseconds(30), milliseconds(73)};
  for (const double first : {0.75, 0.5, 0.25}) {
    for (const int us : {300, 500, 550, 600, 650, 700, 1000, 2000}) {
      const Time pause = microseconds(us);
      const double parts[] = {first, 1 - first};
      std::vector<Program> programs;
      for (size_t i = 0; i < 2; ++i)
        programs.push_back({.share = {.min_ratio = parts[i]}, .step = steps[i], .pause = pause});
      World world(programs);
      world.RunFor(seconds(8));
      for (size_t i = 0; i < 2; ++i) {
        const double alone =
            static_cast<double>(steps[i].count()) / static_cast<double>((steps[i] + pause).count());
        EXPECT_NEAR(world.Ratio(i) / alone, parts[i], 0.023)
            << first << ", pauses of " << us << " us, number " << i;
      }
    }
  }
}

TEST(Turns, GiveNoCreditForPauses) {
  for (const double part : {0.5, 0.75}) {
    for (const Time pause : {milliseconds(3), milliseconds(15)}) {
      World world({{.share = {.min_ratio = part}, .step = milliseconds(1), .pause = pause}, {}});
      world.RunFor(seconds(2));
      EXPECT_LT(world.Ratio(0), 0.25);
      world.runners[0].program.pause = {};
      world.RunFor(milliseconds(500));
      const std::string what = std::to_string(part) + ", " + std::to_string(pause / milliseconds(1)) + " ms";
      EXPECT_NEAR(world.InBuckets(0, seconds(2), milliseconds(2500)) / 5e8, part, 0.05) << what;
      EXPECT_LT(world.runners[1].longest_wait, milliseconds(50)) << what;
    }
  }
}

TEST(Turns, LetNobodyWaitLongForWhoComesBack) {
  // Behind by up to a turn: it went at any moment of one, its own or the other's.
  for (Time busy = milliseconds(480); busy < milliseconds(520); busy += milliseconds(3)) {
    World world({{.busy_for = busy, .every = busy + milliseconds(100)}, {}});
    world.RunFor(seconds(6));
    EXPECT_LT(world.runners[1].longest_wait, milliseconds(25)) << busy / milliseconds(1);
  }
}

TEST(Turns, CostLittleAndLetNobodyWaitLong) {
  for (const Time kernel : {Time(microseconds(20)), Time(microseconds(500))}) {
    World two({{.kernel = kernel}, {.kernel = kernel}});
    two.RunFor(seconds(5));
    EXPECT_GT(two.Ratio(0) + two.Ratio(1), 0.98);
    for (const auto& runner : two.runners) EXPECT_LT(runner.longest_wait, milliseconds(25));
    World four(std::vector<Program>(4, {.kernel = kernel}));
    four.RunFor(seconds(5));
    for (const auto& runner : four.runners) EXPECT_LT(runner.longest_wait, milliseconds(25));
  }
  World eight(std::vector<Program>(8, {.kernel = microseconds(500)}));
  eight.RunFor(seconds(5));
  for (const auto& runner : eight.runners) EXPECT_LT(runner.longest_wait, milliseconds(7 * 6));
}

TEST(Turns, HoldNobodyBackWhoIsAlone) {
  World world({{.kernel = microseconds(500)}, {.busy_for = Time(0)}});
  world.RunFor(seconds(1));
  EXPECT_EQ(world.runners[0].gate_changes, 0u);
  EXPECT_EQ(world.runners[1].gate_changes, 0u);
  EXPECT_GT(world.Ratio(0), 0.999);
  EXPECT_TRUE(world.events.empty());
}

TEST(Turns, KeepACeilingInEveryWindowAlsoOnAnIdleGpu) {
  for (const double ceiling : {0.05, 0.3, 0.6, 0.95}) {
    World alone({{.share = {.max_ratio = ceiling}, .kernel = microseconds(200)}});
    alone.RunFor(seconds(5));
    EXPECT_LE(alone.Windows(0, Time(0)).first, ceiling + 0.012) << ceiling;
    EXPECT_GE(alone.Windows(0, seconds(1)).second, ceiling - 0.02) << ceiling;
    EXPECT_NEAR(alone.Ratio(0), ceiling, 0.01) << ceiling;
  }
  World both({{.share = {.max_ratio = 0.3}}, {.kernel = milliseconds(5)}, {.share = {.max_ratio = 0.1}}});
  both.RunFor(seconds(5));
  EXPECT_LE(both.Windows(0, Time(0)).first, 0.3 + 0.012);
  EXPECT_LE(both.Windows(2, Time(0)).first, 0.1 + 0.012);
  EXPECT_NEAR(both.Ratio(0), 0.3, 0.01);
  EXPECT_NEAR(both.Ratio(1), 0.6, 0.02);
  EXPECT_NEAR(both.Ratio(2), 0.1, 0.01);
}

TEST(Turns, PayBackWhatALongKernelTookBeyondTheCeiling) {
  World world({{.share = {.max_ratio = 0.2}, .kernel = milliseconds(20)}});
  world.RunFor(seconds(10));
  EXPECT_NEAR(world.Ratio(0), 0.2, 0.01);
  EXPECT_LE(world.Windows(0, Time(0)).first, 0.2 + 0.01 + 0.02);
}

TEST(Turns, KeepAMinimumInEveryWindow) {
  std::vector<Program> programs(6, {.share = {.weight = 10}, .kernel = milliseconds(5)});
  programs[0] = {.share = {.weight = 1, .min_ratio = 0.4}, .kernel = microseconds(200)};
  programs[3].busy_for = milliseconds(300);  // comes and goes
  programs[4].every = milliseconds(70), programs[4].busy_for = milliseconds(30);
  World world(programs);
  world.RunFor(seconds(5));
  // Less a turn, and its part of what switching costs.
  EXPECT_GE(world.Windows(0, Time(0)).second, 0.4 - 0.01 - 0.02);
}

TEST(Turns, AreHandedBackByAHolderThatGoesIdle) {
  World world({{.kernel = microseconds(500)},
               {.kernel = microseconds(500), .busy_for = milliseconds(4), .every = milliseconds(30)}});
  world.RunFor(seconds(3));
  EXPECT_GT(world.Ratio(1), 0.1);
  EXPECT_GT(world.Ratio(0) + world.Ratio(1), 0.94);
  EXPECT_GT(world.Ends(1, TurnEnd::kIdle), 50u);
  // It has saved up nothing, but a turn that has lasted is ended for it.
  EXPECT_GT(world.Ends(0, TurnEnd::kOver), 50u);
}

TEST(Turns, EndATurnThatHasLastedForWhoComesBackFromIdle) {
  World world({{.kernel = microseconds(500)},
               {.kernel = microseconds(500),
                .busy_for = milliseconds(4),
                .every = milliseconds(17),
                .from = milliseconds(17)}});
  world.RunFor(seconds(3));
  EXPECT_LT(world.runners[1].longest_wait, milliseconds(7));
}

TEST(Turns, GiveANewcomerItsPartAndNoMore) {
  World world({{}, {.from = seconds(3)}, {.busy_for = Time(0)}});
  world.RunFor(seconds(4));
  EXPECT_NEAR(world.InBuckets(0, seconds(3), seconds(4)) / 1e9, 0.5, 0.03);
  EXPECT_NEAR(world.InBuckets(1, seconds(3), seconds(4)) / 1e9, 0.5, 0.03);
  EXPECT_LT(world.runners[0].longest_wait, milliseconds(25));
  EXPECT_LT(world.runners[1].longest_wait, milliseconds(25));
}

TEST(Turns, GiveNoCreditForTimeSpentIdle) {
  World world({{}, {.busy_for = milliseconds(500), .every = seconds(2)}});
  world.RunFor(seconds(6));
  for (int i = 0; i < 3; ++i) {
    const Time from = seconds(2 * i);
    EXPECT_NEAR(world.InBuckets(1, from, from + milliseconds(500)) / 5e8, 0.5, 0.04) << i;
  }
  EXPECT_LT(world.runners[0].longest_wait, milliseconds(25));
}

TEST(Turns, AreTakenFromAHolderWhoseKernelHangs) {
  World world({{.hangs_at = milliseconds(100)}, {}, {}});
  world.RunFor(seconds(4));
  EXPECT_EQ(world.Ends(0, TurnEnd::kOverran), 1u);
  EXPECT_EQ(world.turns.StateOf(0), TurnState::kOverrunning);
  EXPECT_FALSE(world.turns.Open(0));
  EXPECT_LT(world.runners[1].longest_wait, milliseconds(570));
  // The hung kernel has its time slices of the driver; the rest is divided.
  const double ratio = World::kSliced / 2 / 2;
  EXPECT_NEAR(world.Ratio(1, seconds(1)), ratio, 0.02);
  EXPECT_NEAR(world.Ratio(2, seconds(1)), ratio, 0.02);
}

TEST(Turns, ALongKernelIsBilledToWhoLaunchedIt) {
  // It does not drain in the grace time, and ends later.
  World world({{.kernel = milliseconds(900)}, {}});
  world.RunFor(seconds(20));
  EXPECT_GT(world.Ends(0, TurnEnd::kOverran), 3u);
  EXPECT_NEAR(world.Part(0), 0.5, 0.06);
}

TEST(Turns, AreTakenFromAHolderThatIsStopped) {
  World world({{.stopped_at = milliseconds(100), .goes_on_at = seconds(2)}, {}});
  world.RunFor(seconds(2));
  EXPECT_GT(world.Ratio(1, milliseconds(200)), 0.97);
  EXPECT_LT(world.runners[1].longest_wait, milliseconds(30));
  world.RunFor(seconds(2));
  EXPECT_NEAR(world.Ratio(0, seconds(3)), 0.5, 0.03);
}

TEST(Turns, AreRareForWhoSaysThatItWaitsAndUsesNone) {
  Turns turns(2);
  turns.Add(0, {}, 1);
  turns.Add(1, {}, 1);
  Time held{}, now{};
  unsigned unused = 0;
  const auto run = [&](Time duration, uint64_t progress_of_0) {
    const Time end = now + duration;
    while (now < end) {
      // Stopped in its gate, on the CPU side: it says that it waits.
      const Turns::Seen seen[] = {{.wants = true, .in_flight = false, .progress = progress_of_0},
                                  {.wants = true, .in_flight = turns.Open(1), .progress = 1}};
      const auto answer = turns.Update(now, seen);
      for (const auto& event : answer.events) unused += event.tenant == 0 && event.why == TurnEnd::kUnused;
      ASSERT_GT(answer.next, now);
      if (turns.StateOf(0) == TurnState::kHolding) held += answer.next - now;
      now = answer.next;
    }
  };
  run(seconds(1), 1);
  EXPECT_GE(unused, 3u);
  held = {};
  run(seconds(10), 1);
  EXPECT_LT(held, milliseconds(100));
  EXPECT_GT(held, milliseconds(40));  // it is tried again
  // It goes on, and competes as before.
  const Turns::Seen goes_on[] = {{true, false, 2}, {true, turns.Open(1), 1}};
  turns.Update(now, goes_on);
  EXPECT_NE(turns.StateOf(0), TurnState::kIdle);
}

TEST(Turns, GoOnWhenTheHolderDies) {
  World world({{.until = milliseconds(505)}, {}, {}});
  world.RunFor(seconds(1));
  EXPECT_FALSE(world.turns.Has(0));
  EXPECT_LT(world.runners[1].longest_wait, milliseconds(25));
  EXPECT_NEAR(world.InBuckets(1, milliseconds(520), seconds(1)) / 4.8e8, 0.5, 0.05);
  EXPECT_NEAR(world.InBuckets(2, milliseconds(520), seconds(1)) / 4.8e8, 0.5, 0.05);
}

TEST(Turns, SayThatAHolderDied) {
  Turns turns(2);
  turns.Add(0, {}, 1);
  turns.Add(1, {}, 1);
  const Turns::Seen both[] = {{true, true, 1}, {true, false, 1}};
  turns.Update(milliseconds(1), both);
  turns.Update(milliseconds(2), both);
  size_t holder = turns.StateOf(0) == TurnState::kHolding ? 0 : 1;
  if (turns.StateOf(holder) != TurnState::kHolding) {
    const Turns::Seen drained[] = {{true, false, 2}, {true, false, 1}};
    turns.Update(milliseconds(3), drained);
    holder = turns.StateOf(0) == TurnState::kHolding ? 0 : 1;
  }
  ASSERT_EQ(turns.StateOf(holder), TurnState::kHolding);
  turns.Remove(holder);
  const auto answer = turns.Update(milliseconds(4), both);
  ASSERT_EQ(answer.events.size(), 1u);
  EXPECT_EQ(answer.events[0].why, TurnEnd::kLeft);
  EXPECT_EQ(answer.events[0].tenant, holder);
  EXPECT_EQ(turns.StateOf(1 - holder), TurnState::kHolding);
}

TEST(Turns, OfSeveralGpusAreGrantedTogether) {
  World world({{.gpus = 3}, {.gpus = 1}, {.gpus = 2}});
  world.after_ask = [&] {
    if (world.turns.StateOf(0) != TurnState::kHolding) return;
    EXPECT_NE(world.turns.StateOf(1), TurnState::kHolding);
    EXPECT_NE(world.turns.StateOf(2), TurnState::kHolding);
  };
  world.RunFor(seconds(10));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(world.Ratio(i), 0.5, 0.02) << i;
    EXPECT_LT(world.runners[i].longest_wait, milliseconds(30)) << i;
  }
}

TEST(Turns, OfSeveralGpusNeitherStarveNorLeaveAGpuIdle) {
  // GPU 0 is wanted by three, GPU 1 by two.
  World world({{.gpus = 3}, {.gpus = 1}, {.gpus = 1}, {.gpus = 2}});
  world.RunFor(seconds(10));
  EXPECT_NEAR(world.Ratio(0), 1 / 3., 0.03);
  EXPECT_NEAR(world.Ratio(1), 1 / 3., 0.03);
  EXPECT_NEAR(world.Ratio(2), 1 / 3., 0.03);
  EXPECT_GT(world.Ratio(3), 2 / 3. - 0.05);
  for (size_t i = 0; i < 4; ++i) EXPECT_LT(world.runners[i].longest_wait, milliseconds(45)) << i;
}

TEST(Turns, OfAGangDoNotPutTheNextComerBehind) {
  // The fourth has had two thirds of GPU 1; who comes later has no credit for that.
  World world({{.gpus = 3}, {.gpus = 1}, {.gpus = 1}, {.gpus = 2}, {.gpus = 2, .from = seconds(5)}});
  world.RunFor(seconds(6));
  EXPECT_LT(world.runners[3].longest_wait, milliseconds(60));
  EXPECT_NEAR(world.InBuckets(3, seconds(5), seconds(6)) / 1e9, 1 / 3., 0.04);
  EXPECT_NEAR(world.InBuckets(4, seconds(5), seconds(6)) / 1e9, 1 / 3., 0.04);
}

TEST(Turns, OnDifferentGpusHaveNothingToDoWithEachOther) {
  World world({{.gpus = 1}, {.gpus = 2}});
  world.RunFor(seconds(1));
  EXPECT_EQ(world.runners[0].gate_changes + world.runners[1].gate_changes, 0u);
}

TEST(Turns, FollowAChangeOfShares) {
  World world(std::vector<Program>(2));
  world.RunFor(seconds(2));
  world.turns.Change(0, {.min_ratio = 0.8});
  world.RunFor(seconds(5));
  EXPECT_NEAR(world.Ratio(0, milliseconds(2500)), 0.8, 0.02);
  world.turns.Change(0, {.max_ratio = 0.1});
  world.RunFor(seconds(5));
  EXPECT_NEAR(world.Ratio(0, milliseconds(8000)), 0.1, 0.02);
  world.turns.Change(0, {});
  world.RunFor(seconds(5));
  EXPECT_NEAR(world.Ratio(0, milliseconds(12500)), 0.5, 0.02);
}

TEST(Turns, ForgetACeilingThatIsTakenAway) {
  World world({{.share = {.max_ratio = 0.05}}});
  world.RunFor(milliseconds(500));
  ASSERT_FALSE(world.turns.Open(0));
  world.turns.Change(0, {});
  world.RunFor(milliseconds(500));
  EXPECT_GT(world.Ratio(0, milliseconds(500)), 0.98);
}

TEST(Turns, CountForTheCeilingWhatIsShorterThanTheTimeBetweenTwoLooks) {
  // 400 us in every 1.23 ms, looked at each millisecond.
  World world({{.share = {.max_ratio = 0.2},
                .kernel = microseconds(97),
                .think = microseconds(1),
                .busy_for = microseconds(400),
                .every = microseconds(1230)}});
  world.RunFor(seconds(5));
  EXPECT_NEAR(world.Ratio(0), 0.2, 0.03);
  EXPECT_NEAR(static_cast<double>(world.turns.Billed(0).count()), world.Ran(0), 0.15 * world.Ran(0));
}

TEST(Turns, BillNobodyForTheTimeThatNobodyLooked) {
  World world(std::vector<Program>(2));
  world.RunFor(seconds(1));
  const Time before = world.turns.Billed(0) + world.turns.Billed(1);
  // The daemon was stopped for an hour.
  const Turns::Seen both[] = {{true, world.turns.Open(0), 1}, {true, world.turns.Open(1), 1}};
  world.turns.Update(world.now + std::chrono::hours(1), both);
  EXPECT_LE(world.turns.Billed(0) + world.turns.Billed(1) - before, milliseconds(101));
}

}  // namespace
}  // namespace gpumux::core
