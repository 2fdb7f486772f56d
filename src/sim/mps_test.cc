// SPDX-License-Identifier: Apache-2.0
//
// MPS in virtual time, against what was measured on an H200 (driver 580.159.04).
#include "sim/mps.h"

#include <gtest/gtest.h>

#include "sim/device_memory.h"
#include "sim/gpu_model_world.h"

namespace gpumux::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using Sharing = GpuModel::Sharing;

constexpr uint64_t kMiB = 1 << 20;

TEST(Mps, PercentagesAreTheMeasuredNumbersOfSms) {
  const struct {
    double percent;
    int sms;
  } measured[] = {{1, 8},   {2, 8},    {3, 8},    {4, 8},    {5, 8},    {10, 12},  {15, 18}, {20, 26},
                  {25, 32}, {30, 38},  {33, 42},  {40, 52},  {50, 66},  {60, 78},  {66, 86}, {70, 92},
                  {75, 98}, {80, 104}, {90, 118}, {95, 124}, {99, 130}, {100, 132}};
  for (const auto& point : measured) EXPECT_EQ(MpsSms(132, point.percent), point.sms) << point.percent;
  // Of another GPU, with 188 SMs, three points are published.
  EXPECT_EQ(MpsSms(188, 25), 46);
  EXPECT_EQ(MpsSms(188, 50), 94);
  EXPECT_EQ(MpsSms(188, 75), 140);
  EXPECT_EQ(MpsSms(4, 50), 4) << "a GPU that has no eight";
}

TEST(Mps, ClientsGoByTheDriver) {
  EXPECT_EQ(MpsClients("535.104.05"), 48u);
  EXPECT_EQ(MpsClients("580.159.04"), 48u);
  EXPECT_EQ(MpsClients("590.44.01"), 60u);
  EXPECT_EQ(MpsClients(""), 48u);
}

// Rates of clients that launch a kernel of 500 us and wait, each within 3 %.
TEST(Mps, ClientsRunSideBySideAsMeasured) {
  const Sharing client{.group = 9};
  const struct {
    std::vector<Sharing> clients;
    uint64_t blocks;
    microseconds think;
    double rate;
  } cases[] = {{{client, client}, 33, {}, 1938},
               {{client, client, client, client}, 33, {}, 1946},
               {{client, client}, 132, {}, 1943},
               {{client, client}, 33, microseconds(1500), 496},
               {{{.group = 9, .sms = 32}}, 132, {}, 658}};
  for (const auto& c : cases) {
    for (double rate : ClosedLoop(static_cast<int>(c.clients.size()), c.blocks, c.think, c.clients)) {
      EXPECT_NEAR(rate, c.rate, c.rate * 0.03) << c.clients.size() << " clients, " << c.blocks << " blocks";
    }
  }
}

TEST(Mps, AServerAndAProcessOutsideTakeTurns) {
  GpuModel model(kH200);
  model.SetSharing(1, {.group = 9});
  model.SetSharing(2, {.group = 9});
  for (GpuModel::Process process : {1, 2, 3}) {
    for (int i = 0; i < 110; ++i) model.Launch({}, process, 1, Spin(microseconds(1000), 33));
  }
  model.Advance(seconds(1));
  GpuModel::Time last[4]{};
  for (const auto& c : model.TakeCompletions()) last[c.process] = c.end;
  // Each side needs 50 slices of 2.2 ms, and between them the GPU changes hands.
  EXPECT_EQ(last[1], last[2]);
  EXPECT_EQ(last[1], 99 * microseconds(2200) + 98 * microseconds(135));
  EXPECT_EQ(last[3], 100 * microseconds(2200) + 99 * microseconds(135));
}

TEST(Mps, SmsThatAreSharedArePassedOn) {
  GpuModel model(kH200);
  model.SetSharing(1, {.group = 9, .sms = 66});
  model.SetSharing(2, {.group = 9, .sms = 98});
  model.Launch({}, 1, 1, Spin(microseconds(100), 264, 1));  // 132 at a time, by its cap
  model.Launch({}, 2, 1, Spin(microseconds(100), 132, 2));
  model.Advance(seconds(1));
  const auto done = model.TakeCompletions();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].kernel, 2u);
  EXPECT_EQ(done[0].end, microseconds(100)) << "beside it, in the SMs that the cap leaves";
  EXPECT_EQ(done[1].end, microseconds(200));
}

TEST(Mps, BlocksThatWaitGoByPriority) {
  for (bool below : {false, true}) {
    GpuModel model(kH200);
    model.SetSharing(1, {.group = 9, .below_normal = below});
    model.SetSharing(2, {.group = 9});
    model.Launch({}, 1, 1, Spin(microseconds(100), 528, 1));  // two waves, the second waits
    model.Launch(microseconds(10), 2, 1, Spin(microseconds(100), 264, 2));
    model.Advance(seconds(1));
    const auto done = model.TakeCompletions();
    ASSERT_EQ(done.size(), 2u);
    EXPECT_EQ(done[0].kernel, below ? 2u : 1u);
  }
}

// As measured: beside a deep queue of kernels that fill the GPU a chain of ten
// short kernels takes as long whether the queue is of low priority or not.
TEST(Mps, ALowPriorityHelpsNoChainOfShortKernels) {
  GpuModel::Time ends[2];
  for (bool below : {false, true}) {
    GpuModel model(kH200);
    model.SetSharing(1, {.group = 9, .below_normal = below});
    model.SetSharing(2, {.group = 9});
    for (int i = 0; i < 64; ++i) model.Launch({}, 1, 1, Spin(microseconds(200), 264));
    for (uint64_t i = 1; i <= 10; ++i) {
      model.Launch(microseconds(50), 2, 1, Spin(microseconds(50), 132, i));
    }
    model.Advance(seconds(1));
    for (const auto& c : model.TakeCompletions()) {
      if (c.process == 2 && c.kernel == 10) ends[below] = c.end - microseconds(50);
    }
  }
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_NEAR(static_cast<double>(ends[0].count()) / 1e3, 2176, 2176 * 0.15);
}

TEST(Mps, AClientThatGoesLeavesItsSmsToTheOthers) {
  GpuModel model(kH200);
  model.SetSharing(1, {.group = 9});
  model.SetSharing(2, {.group = 9});
  model.Launch({}, 1, 1, Spin(seconds(10), 264, 1));
  model.Launch({}, 2, 1, Spin(microseconds(100), 264, 2));
  EXPECT_TRUE(model.HasWork(2));
  model.RemoveProcess(microseconds(50), 1);
  model.Advance(microseconds(150));
  const auto done = model.TakeCompletions();
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].end, microseconds(150));
  EXPECT_FALSE(model.HasWork(2));
  EXPECT_FALSE(model.HasWork(1));
}

TEST(Mps, EachClientIsBusyForItself) {
  GpuModel model(kH200);
  model.SetSharing(1, {.group = 9});
  model.SetSharing(2, {.group = 9});
  model.Launch({}, 1, 1, Spin(microseconds(500'000), 33));
  model.Launch({}, 2, 1, Spin(microseconds(250'000), 33));
  EXPECT_NEAR(model.BusyShare(seconds(1), seconds(1)), 0.5, 1e-9);
  EXPECT_NEAR(model.BusyShare(seconds(1), seconds(1), 1), 0.5, 1e-9);
  EXPECT_NEAR(model.BusyShare(seconds(1), seconds(1), 2), 0.25, 1e-9);
}

// What the driver said was free, in whole MiB, with a server and one client.
TEST(Mps, MemoryIsAsMeasured) {
  for (const auto& [sms, free] : {std::pair(132, 142'565u), std::pair(8, 143'023u)}) {
    DeviceMemory memory(kH200);
    memory.AddProcess(1);
    memory.SetTerms(1, kH200.mps_server_own, kH200.mps_server_device, 0);
    ASSERT_TRUE(memory.AddContext(1));
    EXPECT_GE(memory.used() / kMiB, 66u);
    EXPECT_LE(memory.used() / kMiB, 75u);
    memory.AddProcess(2);
    const ContextCost cost = MpsContext(kH200, sms);
    memory.SetTerms(2, cost.own, cost.device, 0);
    ASSERT_TRUE(memory.AddContext(2));
    EXPECT_EQ(memory.free() / kMiB, free);
  }
  EXPECT_EQ(MpsContext(kH200, 132).device, 516 * kMiB);
}

TEST(Mps, ALimitCountsTheContextAndManagedMemoryInFull) {
  DeviceMemory memory(kH200);
  memory.AddProcess(1);
  const ContextCost cost = MpsContext(kH200, 132);
  memory.SetTerms(1, cost.own, cost.device, 4096 * kMiB);
  ASSERT_TRUE(memory.AddContext(1));
  EXPECT_EQ(memory.FreeFor(1), 3582 * kMiB);
  EXPECT_FALSE(memory.ReserveManaged(1, 8192 * kMiB));
  EXPECT_FALSE(memory.Take(1, 3583 * kMiB));
  ASSERT_TRUE(memory.ReserveManaged(1, 582 * kMiB));
  ASSERT_TRUE(memory.Take(1, 3000 * kMiB));
  EXPECT_EQ(memory.FreeFor(1), 0u);
  EXPECT_FALSE(memory.Take(1, 2 * kMiB));
  EXPECT_FALSE(memory.AddContext(1));
  EXPECT_TRUE(memory.ReleaseManaged(1, 582 * kMiB));
  EXPECT_FALSE(memory.ReleaseManaged(1, 1));
  EXPECT_EQ(memory.FreeFor(1), 582 * kMiB);
  EXPECT_EQ(memory.FreeFor(2), memory.free()) << "of another process nothing is limited";
}

}  // namespace
}  // namespace gpumux::sim
