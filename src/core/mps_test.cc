// SPDX-License-Identifier: Apache-2.0
#include "core/mps.h"

#include <gtest/gtest.h>

#include "base/units.h"

namespace gpumux::core {
namespace {

gpu::Uuid Gpu(uint8_t number) {
  gpu::Uuid uuid;
  uuid.bytes[15] = number;
  return uuid;
}

// Measured on an H200: percentage -> multiprocessors of 132.
TEST(Mps, MultiprocessorsAreRoundedAsTheDriverDoes) {
  const std::pair<int, unsigned> measured[] = {
      {1, 8},   {5, 8},   {10, 12}, {15, 18}, {20, 26},  {25, 32},  {30, 38},  {33, 42},  {40, 52},  {50, 66},
      {60, 78}, {66, 86}, {70, 92}, {75, 98}, {80, 104}, {90, 118}, {95, 124}, {99, 130}, {100, 132}};
  for (const auto& [percent, sms] : measured) EXPECT_EQ(MpsSms(132, percent / 100.0), sms) << percent;
  EXPECT_EQ(MpsSms(4, 0.5), 4u);  // never more than there are
}

TEST(Mps, APercentageIsWrittenAsItWasAsked) {
  EXPECT_EQ(MpsPercentage(0.4), "40");
  EXPECT_EQ(MpsPercentage(0.29), "29");
  EXPECT_EQ(MpsPercentage(0.125), "12.5");
  EXPECT_EQ(MpsPercentage(1), "100");
  EXPECT_EQ(MpsPercentage(7), "100");
}

TEST(Mps, ClientsFollowTheDriversBranch) {
  EXPECT_EQ(MpsClientsOf("580.159.04"), 48u);
  EXPECT_EQ(MpsClientsOf("590.44"), 60u);
  EXPECT_EQ(MpsClientsOf("615.71"), 60u);
  EXPECT_EQ(MpsClientsOf(""), 48u);
  EXPECT_EQ(MpsClientsOf("unknown"), 48u);
}

TEST(Mps, LimitsAreByUuidAndNeverBelowThePromise) {
  EXPECT_EQ(MpsLimits({}), "");
  EXPECT_EQ(MpsLimits({{Gpu(1), 4 * kGiB}, {Gpu(2), kGiB + 1}}),
            "GPU-00000000-0000-0000-0000-000000000001=4096M,"
            "GPU-00000000-0000-0000-0000-000000000002=1025M");
  EXPECT_EQ(LimitOfProcess(8 * kGiB, 4), 2 * kGiB);
}

TEST(Mps, SlotsAreCounted) {
  MpsSnapshot gpu;
  gpu.clients = 46;
  EXPECT_EQ(WhyNotMps(2, gpu, 0), std::nullopt);
  EXPECT_EQ(WhyNotMps(3, gpu, 0), "GPU 0 has 46 of 48 MPS clients, and this one needs 3");
  gpu.not_now = "its MPS server recovers from a fault";
  EXPECT_EQ(WhyNotMps(1, gpu, 7), "GPU 7: its MPS server recovers from a fault");
}

}  // namespace
}  // namespace gpumux::core
