// SPDX-License-Identifier: Apache-2.0
//
// In virtual time, against what was measured on an H200 (driver 580.159.04).
// `spin` blocks of 1024 threads, so that two fill one SM.
#include "sim/gpu_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/gpu_model_world.h"

namespace gpumux::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Time = GpuModel::Time;

// Measured rates, each within 3 %.
TEST(GpuModel, ClientsTakeTurnsAsMeasured) {
  const struct {
    int clients;
    uint64_t blocks;
    Time think;
    double rate;
  } cases[] = {{1, 33, {}, 1932},
               {1, 132, {}, 1957},
               {1, 264, {}, 1953},
               {2, 33, {}, 787},
               {4, 33, {}, 393},
               {2, 132, {}, 785},
               {1, 33, microseconds(1500), 496},
               {2, 33, microseconds(1500), 464}};
  for (const auto& c : cases) {
    for (double rate : ClosedLoop(c.clients, c.blocks, c.think)) {
      EXPECT_NEAR(rate, c.rate, c.rate * 0.03)
          << c.clients << " clients, " << c.blocks << " blocks, think " << c.think.count() << " ns";
    }
  }
}

struct Waits {
  double p50_us, p99_us, neighbour_share;
};
// Requests of ten kernels of 50 us, 3 ms apart (Poisson), beside a queue of
// 200 us kernels that is never empty (or is not there).
Waits LatencyCritical(bool neighbour) {
  World world;
  std::mt19937_64 random(7);
  std::exponential_distribution<double> think(1 / 3e6);
  std::vector<double> waits;
  Time began{};
  uint64_t left = 0, background = 0;
  const auto request = [&] {
    began = world.now();
    left = 10;
    // One after another on the host, 5 us apart.
    for (int i = 0; i < 10; ++i) {
      world.At(world.now() + microseconds(5) * (i + 1),
               [&] { world.model.Launch(world.now(), 1, 1, Spin(microseconds(50), 132)); });
    }
  };
  const auto feed = [&] { world.model.Launch(world.now(), 2, 1, Spin(microseconds(200), 264)); };
  world.on_completion = [&](const GpuModel::Completion& c) {
    if (c.process == 2) {
      ++background;
      feed();
      return;
    }
    if (--left > 0) return;
    const Time done = c.end + microseconds(11);
    waits.push_back(static_cast<double>((done - began).count()) / 1e3);
    world.At(done + nanoseconds(static_cast<int64_t>(think(random))), request);
  };
  if (neighbour) {
    for (int i = 0; i < 64; ++i) feed();
  }
  world.At(microseconds(1000), request);
  world.RunUntil(seconds(30));
  std::sort(waits.begin(), waits.end());
  return {waits[waits.size() / 2], waits[waits.size() * 99 / 100],
          static_cast<double>(background) * 200e-6 / 30};
}

TEST(GpuModel, ANeighbourWaitsForTheSliceAsMeasured) {
  const Waits alone = LatencyCritical(false);
  EXPECT_NEAR(alone.p50_us, 523, 523 * 0.05);
  const Waits shared = LatencyCritical(true);
  EXPECT_NEAR(shared.p50_us, 2058, 2058 * 0.1);
  EXPECT_NEAR(shared.p99_us, 2907, 2907 * 0.1);
  EXPECT_NEAR(shared.neighbour_share, 0.86, 0.04);
}

TEST(GpuModel, BlocksGoInWaves) {
  GpuModel model(kH200);
  // 264 blocks of 1024 threads fit at once; one more takes a second wave.
  const struct {
    uint64_t blocks;
    uint32_t threads;
    int waves;
  } cases[] = {{264, 1024, 1}, {265, 1024, 2}, {132, 1024, 1}, {528, 512, 1},
               {529, 512, 2},  {4224, 32, 1},  {4225, 32, 2}};
  Time now{};
  for (const auto& c : cases) {
    model.Launch(
        now, 1, 1,
        {.id = 1, .duration = microseconds(100), .blocks = c.blocks, .threads_per_block = c.threads});
    now += seconds(1);
    model.Advance(now);
    const auto done = model.TakeCompletions();
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].end - done[0].start, c.waves * microseconds(100)) << c.blocks << " x " << c.threads;
  }
}

TEST(GpuModel, StreamsOverlapWhileSmsLastAndKeepTheirOrder) {
  GpuModel model(kH200);
  const Time t = microseconds(100);
  for (uint64_t stream = 1; stream <= 4; ++stream) {
    model.Launch({}, 1, stream, Spin(t, 66, stream));  // 4 x 66 blocks: all at once
    model.Launch({}, 1, stream, Spin(t, 66, 10 + stream));
  }
  model.Launch({}, 1, 5, Spin(t, 66, 5));  // no room until the others are done
  model.Advance(seconds(1));
  std::map<uint64_t, Time> ends;
  for (const auto& c : model.TakeCompletions()) ends[c.kernel] = c.end;
  for (uint64_t stream = 1; stream <= 4; ++stream) EXPECT_EQ(ends.at(stream), t);
  EXPECT_EQ(ends.at(5), 2 * t);
  for (uint64_t stream = 1; stream <= 3; ++stream) EXPECT_EQ(ends.at(10 + stream), 2 * t);
  EXPECT_EQ(ends.at(14), 3 * t) << "the fifth stream came first";
}

TEST(GpuModel, AnInterruptedKernelGoesOnWhereItWas) {
  GpuModel model(kH200);
  model.Launch({}, 1, 1, Spin(microseconds(5000), 264, 1));
  model.Launch({}, 2, 1, Spin(microseconds(5000), 264, 2));
  model.Advance(seconds(1));
  const auto done = model.TakeCompletions();
  ASSERT_EQ(done.size(), 2u);
  // 2.2 ms each in turn, a switch between: 1 2 1 2 1 2.
  EXPECT_EQ(done[0].kernel, 1u);
  EXPECT_EQ(done[0].end, microseconds(5000 + 2 * 2200 + 4 * 135));
  EXPECT_EQ(done[1].end, microseconds(10000 + 5 * 135));
  EXPECT_EQ(model.switches(), 5u);
}

TEST(GpuModel, ADeadProcessLeavesNothingBehind) {
  GpuModel model(kH200);
  for (int i = 0; i < 100; ++i) model.Launch({}, 1, 1, Spin(microseconds(1000), 264));
  model.Launch({}, 2, 1, Spin(microseconds(1000), 264, 42));
  model.RemoveProcess(microseconds(500), 1);
  model.Advance(microseconds(1500));
  const auto done = model.TakeCompletions();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].kernel, 42u);
  EXPECT_EQ(done[0].end, microseconds(1500));
  EXPECT_FALSE(model.NextEventTime());
}

TEST(GpuModel, ADeathDuringTheSwitchIsHarmless) {
  for (uint64_t victim : {1, 2}) {
    GpuModel model(kH200);
    model.Launch({}, 1, 1, Spin(microseconds(100), 1));
    model.Launch({}, 2, 1, Spin(microseconds(100), 1));
    model.Launch({}, 3, 1, Spin(microseconds(100), 1));
    model.Advance(microseconds(150));  // switching from 1 to 2
    model.RemoveProcess(microseconds(160), victim);
    model.Advance(seconds(1));
    EXPECT_EQ(model.TakeCompletions().size(), victim == 1 ? 3u : 2u);
    EXPECT_FALSE(model.NextEventTime());
  }
}

TEST(GpuModel, SaysHowBusyItWas) {
  GpuModel model(kH200);
  model.Launch({}, 1, 1, Spin(microseconds(250'000), 1));
  EXPECT_NEAR(model.BusyShare(seconds(1), seconds(1)), 0.25, 1e-9);
  EXPECT_NEAR(model.BusyShare(seconds(1) + microseconds(125'000), seconds(1)), 0.125, 1e-9);
  EXPECT_EQ(model.BusyShare(seconds(3), seconds(1)), 0);
}

}  // namespace
}  // namespace gpumux::sim
