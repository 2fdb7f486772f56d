// SPDX-License-Identifier: Apache-2.0
//
// Turns in random company: what must hold at every moment, whoever comes, goes,
// idles and hangs, judged by what the programs did and not by what was decided.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "core/testing/turns_world.h"

namespace gpumux::core {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Program;
using testing::World;
using Time = Turns::Time;

template <typename T>
rc::Gen<T> InRange(T low, T high) {
  return rc::gen::resize(rc::kNominalSize, rc::gen::inRange<T>(low, high));
}

constexpr Time kLongest = milliseconds(20);  // kernel

Program AnyProgram(unsigned gpus) {
  Program program;
  program.gpus = *rc::gen::weightedElement<unsigned>({{6, 1u << *InRange(0u, gpus)}, {2, (1u << gpus) - 1}});
  program.kernel = *rc::gen::element<Time>(microseconds(20), microseconds(300), milliseconds(4), kLongest);
  if (*InRange(0, 3) == 0) program.think = microseconds(*InRange(1, 3000));
  if (*InRange(0, 3) == 0) {
    program.every = milliseconds(*InRange(2, 200));
    program.busy_for = program.every * *InRange(1, 10) / 10;
  }
  if (*InRange(0, 3) == 0) program.share.weight = *InRange(1, 4);
  if (*InRange(0, 4) == 0) program.share.max_ratio = *InRange(5, 100) / 100.;
  if (*InRange(0, 4) == 0) program.share.min_ratio = std::min(program.share.max_ratio, 0.15);
  if (*InRange(0, 4) == 0) program.from = milliseconds(*InRange(0, 1500));
  if (*InRange(0, 6) == 0) program.until = program.from + milliseconds(*InRange(1, 1000));
  if (*InRange(0, 10) == 0) program.hangs_at = milliseconds(*InRange(1, 1500));
  return program;
}

bool Wants(const World::Runner& runner) { return runner.there && (runner.queued || runner.left_ns != 0); }

// What the histories met in all.
std::map<TurnEnd, size_t> g_ends;
size_t g_gangs_held = 0, g_contended = 0;

class Watch {
 public:
  Watch(World& world, unsigned gpus) : world_(world), gpus_(gpus), nobody_since_(gpus, Time(-1)) {}

  void operator()() {
    for (unsigned gpu = 0; gpu < gpus_; ++gpu) LookAt(gpu);
    for (size_t i = 0; i < world_.runners.size(); ++i) {
      if (world_.runners[i].there && world_.turns.StateOf(i) == TurnState::kHolding) {
        RC_ASSERT(world_.turns.Open(i));
        g_gangs_held += world_.runners[i].program.gpus.count() > 1;
      }
    }
  }

 private:
  void LookAt(unsigned gpu) {
    size_t holding = 0, wanting = 0, open_and_wanting = 0, plain_waiting = 0, busy_gates = 0;
    for (size_t i = 0; i < world_.runners.size(); ++i) {
      const auto& runner = world_.runners[i];
      if (!runner.there || !runner.program.gpus[gpu]) continue;
      const TurnState state = world_.turns.StateOf(i);
      holding += state == TurnState::kHolding;
      busy_gates += state == TurnState::kHolding || state == TurnState::kDraining;
      wanting += Wants(runner);
      open_and_wanting += Wants(runner) && world_.turns.Open(i);
      plain_waiting += Wants(runner) && state == TurnState::kWaiting && !runner.program.share.HasCeiling() &&
                       runner.program.gpus.count() == 1;
    }
    RC_ASSERT(holding <= 1u);
    RC_ASSERT(open_and_wanting <= 1u);
    g_contended += wanting > 1;
    // Somebody wants this GPU alone, and nobody has it: not for longer than others
    // of a tenant of several GPUs take to drain.
    if (plain_waiting == 0 || busy_gates > 0) {
      nobody_since_[gpu] = Time(-1);
    } else {
      if (nobody_since_[gpu] < Time(0)) nobody_since_[gpu] = world_.now;
      const bool gangs = std::any_of(world_.runners.begin(), world_.runners.end(), [](const auto& runner) {
        return runner.there && runner.program.gpus.count() > 1;
      });
      RC_ASSERT(world_.now - nobody_since_[gpu] <= (gangs ? milliseconds(600) : milliseconds(0)));
    }
  }

  World& world_;
  unsigned gpus_;
  std::vector<Time> nobody_since_;
};

void RandomHistory() {
  const unsigned gpus = *InRange(1u, 4u);
  std::vector<Program> programs;
  const int count = *InRange(2, 7);
  for (int i = 0; i < count; ++i) programs.push_back(AnyProgram(gpus));
  World world(programs);
  world.after_ask = Watch(world, gpus);
  world.RunFor(seconds(2));

  for (size_t i = 0; i < programs.size(); ++i) {
    const auto& p = programs[i];
    RC_LOG() << i << ": gpus " << p.gpus << ", kernel " << p.kernel / microseconds(1) << " us, think "
             << p.think.value_or(Time(-1)) / microseconds(1) << ", busy " << p.busy_for / milliseconds(1)
             << " of " << p.every / milliseconds(1) << " ms, from " << p.from / milliseconds(1) << " to "
             << (p.until == Time::max() ? -1 : p.until / milliseconds(1)) << ", weight " << p.share.weight
             << ", " << p.share.min_ratio << ":" << p.share.max_ratio << "; waited "
             << world.runners[i].longest_wait / microseconds(1) << " us\n";
  }
  const bool hangs =
      std::any_of(programs.begin(), programs.end(), [&](const auto& p) { return p.hangs_at < world.now; });
  for (size_t i = 0; i < programs.size(); ++i) {
    RC_ASSERT(world.turns.Billed(i) <= world.now);
    if (programs[i].hangs_at < world.now) continue;
    if (programs[i].share.HasCeiling()) {
      // What was in flight at the end of a turn, and what came before it was first seen.
      const double ran = world.Windows(i, Time(0)).first;
      RC_ASSERT(ran <= programs[i].share.max_ratio + 0.01 + 0.02 + 0.01);
    } else if (!hangs) {
      // What it used itself last must be level with the others first, and then each of them has
      // at most one turn before it; a turn and its last kernel are `most`.
      double weights = 0, minima = 0;
      for (const auto& other : programs) weights += other.share.weight, minima += other.share.min_ratio;
      const Time most = milliseconds(25) + kLongest;
      const auto own = static_cast<int>(weights / programs[i].share.weight / std::max(1 - minima, 0.1) + 1);
      RC_ASSERT(world.runners[i].longest_wait <= (own + count) * most);
    }
  }
  for (const auto& event : world.events) ++g_ends[event.why];
}

TEST(TurnsProperty, HoldInEveryHistory) {
  constexpr int kHistories = 150;
  rc::detail::TestParams params;
  params.seed = 20261130;
  params.maxSuccess = kHistories;
  const auto result =
      rc::detail::checkTestable([] { RandomHistory(); }, rc::detail::TestMetadata{"turns", ""}, params);
  std::ostringstream out;
  rc::detail::printResultMessage(result, out);
  ASSERT_TRUE(result.is<rc::detail::SuccessResult>()) << out.str();
  EXPECT_EQ(result.get<rc::detail::SuccessResult>().numSuccess, kHistories);
  for (const TurnEnd why : {TurnEnd::kOver, TurnEnd::kIdle, TurnEnd::kCeiling, TurnEnd::kMadeWay,
                            TurnEnd::kOverran, TurnEnd::kLeft}) {
    EXPECT_GT(g_ends[why], 10u) << Name(why);
  }
  EXPECT_GT(g_gangs_held, 1000u);
  EXPECT_GT(g_contended, 10000u);
}

}  // namespace
}  // namespace gpumux::core
