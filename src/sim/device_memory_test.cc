// SPDX-License-Identifier: Apache-2.0
//
// Figures: H200, driver 580.159.04, as recorded (NVML's and the driver's own).
#include "sim/device_memory.h"

#include <gtest/gtest.h>

namespace gpumux::sim {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(DeviceMemory, ContextsCostWhatWasMeasured) {
  DeviceMemory memory(kH200);
  EXPECT_EQ(memory.free(), 150'109'880'320u);
  memory.AddProcess(1);
  EXPECT_EQ(memory.used(), 3'407'872u) << "by cuInit, before any context";
  EXPECT_FALSE(memory.Listed(1));
  ASSERT_TRUE(memory.AddContext(1));
  EXPECT_EQ(memory.OwnBytes(1), 543'162'368u);
  EXPECT_EQ(memory.used(), 552'402'944u);
  EXPECT_EQ(memory.free(), 149'557'477'376u);
  ASSERT_TRUE(memory.AddContext(1));
  EXPECT_EQ(memory.OwnBytes(1), 2 * 543'162'368u);
  EXPECT_EQ(memory.used(), 552'402'944u + 548'995'072u);
  ASSERT_TRUE(memory.RemoveContext(1));
  ASSERT_TRUE(memory.RemoveContext(1));
  EXPECT_FALSE(memory.Listed(1));
  EXPECT_EQ(memory.used(), 3'407'872u) << "until the process ends";
  memory.RemoveProcess(1);
  EXPECT_EQ(memory.used(), 0u);
}

TEST(DeviceMemory, FillsToTheMeasuredBrim) {
  DeviceMemory memory(kH200);
  memory.AddProcess(1);
  ASSERT_TRUE(memory.AddContext(1));
  uint64_t taken = 0;
  for (uint64_t step = 1024 * kMiB; step >= 2 * kMiB; step /= 2) {
    while (memory.Take(1, step)) taken += step;
  }
  EXPECT_EQ(taken, 149'554'200'576u);
  EXPECT_EQ(memory.free(), 3'276'800u);
  EXPECT_EQ(memory.OwnBytes(1), 150'097'362'944u);
}

TEST(DeviceMemory, ManagedCountsForTheDeviceAlone) {
  DeviceMemory memory(kH200);
  memory.AddProcess(1);
  ASSERT_TRUE(memory.AddContext(1));
  const uint64_t before = memory.used(), own = memory.OwnBytes(1);
  ASSERT_TRUE(memory.TouchManaged(1, 50 * kMiB));
  EXPECT_EQ(memory.used() - before, 134'217'728u);
  EXPECT_EQ(memory.OwnBytes(1), own);
  ASSERT_TRUE(memory.FreeManaged(1, 50 * kMiB));
  EXPECT_EQ(memory.used() - before, 134'217'728u - 52'428'800u);
  // What is kept serves the next use and gives way to a plain allocation.
  ASSERT_TRUE(memory.TouchManaged(1, 6 * kMiB));
  EXPECT_EQ(memory.used() - before, 134'217'728u - 52'428'800u);
  ASSERT_TRUE(memory.FreeManaged(1, 6 * kMiB));
  EXPECT_EQ(memory.used() - before, 75'497'472u);
  while (memory.Take(1, 1024 * kMiB)) continue;
  while (memory.Take(1, 2 * kMiB)) continue;
  EXPECT_EQ(memory.free(), 3'276'800u) << "the cache is gone";
}

TEST(DeviceMemory, TheDriversOwnIsThereOnceForAllProcesses) {
  DeviceMemory memory(kH200);
  memory.AddProcess(1);
  memory.AddProcess(2);
  memory.AddProcess(2);
  EXPECT_EQ(memory.used(), 3'407'872u);
  memory.RemoveProcess(1);
  EXPECT_EQ(memory.used(), 3'407'872u);
  memory.RemoveProcess(2);
  EXPECT_EQ(memory.used(), 0u);
}

TEST(DeviceMemory, ManagedMemoryComesInBatches) {
  // 100 MiB touched at once held 128 MiB, and 28 of them after the free.
  DeviceMemory memory(kH200);
  ASSERT_TRUE(memory.TouchManaged(1, 100 * kMiB));
  EXPECT_EQ(memory.used(), 134'217'728u);
  ASSERT_TRUE(memory.FreeManaged(1, 100 * kMiB));
  EXPECT_EQ(memory.used(), 29'360'128u);
}

TEST(DeviceMemory, RefusesWhatIsNotThereAndWhatIsNotHeld) {
  DeviceMemory memory(kH200);
  EXPECT_FALSE(memory.Take(1, 200ULL << 30));
  EXPECT_FALSE(memory.Take(1, ~0ULL));
  EXPECT_FALSE(memory.Give(1, 1));
  EXPECT_FALSE(memory.RemoveContext(1));
  EXPECT_FALSE(memory.FreeManaged(1, 1));
  ASSERT_TRUE(memory.Take(1, 4 * kMiB));
  EXPECT_FALSE(memory.Give(1, 6 * kMiB));
  EXPECT_FALSE(memory.Give(2, 2 * kMiB)) << "another's";
  EXPECT_EQ(memory.used(), 4 * kMiB);
}

TEST(DeviceMemory, NothingOfAProcessOutlivesIt) {
  DeviceMemory memory(kH200);
  memory.AddProcess(1);
  memory.AddProcess(2);
  ASSERT_TRUE(memory.AddContext(1));
  ASSERT_TRUE(memory.AddContext(2));
  const uint64_t neighbour = kH200.context_device + kH200.opened_device;
  ASSERT_TRUE(memory.AddContext(1));
  ASSERT_TRUE(memory.Take(1, 100 * kMiB));
  ASSERT_TRUE(memory.TouchManaged(1, 10 * kMiB));
  memory.RemoveProcess(1);
  EXPECT_EQ(memory.used(), neighbour);
  EXPECT_EQ(memory.OwnBytes(1), 0u);
}

TEST(DeviceMemory, MemoryCanOutliveTheProcessThatTookIt) {
  DeviceMemory memory(kH200);
  ASSERT_TRUE(memory.Take(1, 10 * kMiB));
  EXPECT_FALSE(memory.Disown(1, 12 * kMiB));
  EXPECT_FALSE(memory.Adopt(2, 2 * kMiB)) << "it has an owner";
  ASSERT_TRUE(memory.Disown(1, 6 * kMiB));
  EXPECT_EQ(memory.OwnBytes(1), 4 * kMiB);
  memory.RemoveProcess(1);
  EXPECT_EQ(memory.used(), 6 * kMiB);
  ASSERT_TRUE(memory.Adopt(2, 2 * kMiB));
  EXPECT_EQ(memory.OwnBytes(2), 2 * kMiB);
  EXPECT_FALSE(memory.FreeOwnerless(6 * kMiB));
  ASSERT_TRUE(memory.FreeOwnerless(4 * kMiB));
  EXPECT_EQ(memory.used(), 2 * kMiB);
}

}  // namespace
}  // namespace gpumux::sim
