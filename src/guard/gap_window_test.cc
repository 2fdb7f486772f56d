// SPDX-License-Identifier: Apache-2.0
#include "guard/gap_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gpumux::guard {
namespace {

constexpr uint64_t kUs = 1000, kMs = 1'000'000;

// A program whose requests launch every `step`, and what a neighbour does to it: as long as the gate
// is open, and for `drain` after it was closed, kernels wait; the GPU catches up at `speed` kernels a step.
struct Program {
  uint64_t launches, step, kernel;
  uint64_t drain = 300 * kUs;
  bool harmed_always = false;  // the GPU itself is what it waits for

  // The length of a request whose gates close at `window` after its first launch.
  uint64_t Length(uint64_t window, std::mt19937& random) const {
    const uint64_t last = (launches - 1) * step;
    // Kernels that could not run until the neighbour has drained run one after another then.
    const uint64_t free_at = window == 0 ? 0 : window + drain;
    uint64_t busy_until = free_at;
    for (uint64_t i = 0; i < launches; i++) busy_until = std::max(busy_until, i * step) + kernel;
    const uint64_t jitter = random() % (20 * kUs);
    return std::max(busy_until, last) + (harmed_always ? window / 2 : 0) + jitter;
  }
  uint64_t Span() const { return (launches - 1) * step; }
};

struct Seen {
  std::vector<uint64_t> lengths;
  uint64_t open = 0;
  unsigned windows = 0;
  uint64_t Rank(double fraction) {
    std::sort(lengths.begin(), lengths.end());
    return lengths[static_cast<size_t>(fraction * static_cast<double>(lengths.size() - 1))];
  }
};

Seen Requests(GapWindow& window, const Program& program, unsigned count, std::mt19937& random,
              uint64_t& now) {
  Seen seen;
  for (unsigned i = 0; i < count; i++) {
    const uint64_t close_at = window.Begin(now);
    // When it begins to wait, after its last launch, the gates are closed anyway.
    const uint64_t waits_at = program.Span() + 20 * kUs;
    const uint64_t open = close_at > now ? std::min(close_at - now, waits_at) : 0;
    const uint64_t length = program.Length(open, random);
    if (window.Watches()) window.Launched(now + program.Span());
    window.End(now + length);
    now += length + 5 * kMs;
    seen.lengths.push_back(length);
    seen.open += open;
    seen.windows += open > 0;
  }
  return seen;
}

// 300 launches of 18 us with kernels of 3 us: the GPU is idle for five sixths of it.
constexpr Program kEager = {300, 18 * kUs, 3 * kUs};

TEST(GapWindow, OpensMostOfARequestThatIsBoundByItsLaunches) {
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  const uint64_t strict = Requests(window, kEager, 16, random, now).Rank(0.5);
  Requests(window, kEager, 2000, random, now);
  Seen seen = Requests(window, kEager, 2000, random, now);
  EXPECT_LE(seen.Rank(0.5), strict * 103 / 100);
  EXPECT_LE(seen.Rank(0.99), strict * 106 / 100);
  EXPECT_GE(seen.open, 2000 * strict * 60 / 100);
}

TEST(GapWindow, LeavesARequestAloneThatWaitsForTheGpu) {
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  // As many launches, but kernels that take longer than the launches.
  Seen seen = Requests(window, {300, 5 * kUs, 20 * kUs}, 5000, random, now);
  EXPECT_EQ(seen.windows, 0u);
}

TEST(GapWindow, LeavesAShortRequestAlone) {
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  Seen seen = Requests(window, {20, 18 * kUs, 3 * kUs}, 5000, random, now);
  EXPECT_EQ(seen.windows, 0u);
}

// The driver's time-slicing, for example: whatever runs beside it makes it wait.
TEST(GapWindow, GivesUpWhereEveryWindowHarmsAndTriesSeldomAgain) {
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  Program harmed = kEager;
  harmed.harmed_always = true;
  Seen seen = Requests(window, harmed, 20'000, random, now);
  EXPECT_GT(seen.windows, 0u);
  EXPECT_LT(seen.windows, 20'000u / 100);
}

TEST(GapWindow, FindsAgainWhatItGaveUpWhenTheNeighbourIsAnother) {
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  Program harmed = kEager;
  harmed.harmed_always = true;
  Requests(window, harmed, 1000, random, now);
  Requests(window, kEager, 20'000, random, now);
  EXPECT_GT(Requests(window, kEager, 1000, random, now).windows, 800u);
}

// A request that is shorter than all before must not end with its gates never closed.
TEST(GapWindow, IsNoLongerThanTheShortestOfLateRequests) {
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  Program shorter = kEager;
  shorter.launches = 150;
  for (int round = 0; round < 200; round++) {
    Requests(window, kEager, 7, random, now);
    Requests(window, shorter, 3, random, now);
  }
  EXPECT_LE(window.window_ns(), shorter.Span());
}

// Such a request would be over before its gates are closed.
TEST(GapWindow, ProgramsOfTwoKindsOfRequestsAreStrict) {
  constexpr Program kGraph = {1, 0, 500 * kUs};
  GapWindow window;
  std::mt19937 random(1);
  uint64_t now = kMs;
  EXPECT_GT(Requests(window, kEager, 1000, random, now).windows, 800u);
  // The first one shows it, at the latest when it was one of the windowed.
  EXPECT_LE(Requests(window, kGraph, 1000, random, now).windows, 1u);
  unsigned windows = 0;
  for (int round = 0; round < 2000; round++) {
    Requests(window, kEager, 3, random, now);
    windows += Requests(window, kGraph, 1, random, now).windows;
  }
  EXPECT_LE(windows, 8u);
  // And it is found again when the program is of one kind.
  Requests(window, kEager, 40'000, random, now);
  EXPECT_GT(Requests(window, kEager, 1000, random, now).windows, 800u);
}

TEST(GapWindow, AnAbandonedRequestSaysNothing) {
  GapWindow window;
  for (int i = 0; i < 100; i++) {
    window.Begin(1);
    window.Abandon();
    window.End(5 * kMs);
  }
  std::mt19937 random(1);
  uint64_t now = kMs;
  EXPECT_EQ(Requests(window, kEager, 16, random, now).windows, 0u);
}

}  // namespace
}  // namespace gpumux::guard
