// SPDX-License-Identifier: Apache-2.0
#include "softgpu/mps/settings.h"

#include <gtest/gtest.h>

namespace gpumux::softgpu::mps {
namespace {

constexpr uint64_t kGiB = 1ULL << 30, kMiB = 1ULL << 20;
const std::string kUuid = "GPU-00112233-4455-6677-8899-aabbccddeeff";
const std::string kOther = "GPU-ffffffff-4455-6677-8899-aabbccddeeff";
using Bytes = std::vector<uint64_t>;

TEST(MpsSettings, PercentagesAndPriorities) {
  EXPECT_EQ(ParsePercentage("25"), 25);
  EXPECT_EQ(ParsePercentage("12.5"), 12.5);
  EXPECT_EQ(ParsePercentage("100"), 100);
  for (const char* wrong : {"", "0", "-5", "101", "25%", "x", " 25", "nan", "inf"}) {
    EXPECT_FALSE(ParsePercentage(wrong)) << wrong;
  }
  EXPECT_EQ(ParsePriority("1"), true);
  EXPECT_EQ(ParsePriority("0"), false);
  EXPECT_FALSE(ParsePriority("2"));
}

TEST(MpsSettings, Sizes) {
  EXPECT_EQ(ParseLimitSize("2G"), 2 * kGiB);
  EXPECT_EQ(ParseLimitSize("512M"), 512 * kMiB);
  for (const char* wrong :
       {"", "G", "2", "2GB", "-1G", "0G", "2K", "1.5G", "99999999999999999999G", "40000G"}) {
    EXPECT_FALSE(ParseLimitSize(wrong)) << wrong;
  }
}

TEST(MpsSettings, ALimitIsForTheGpuThatItNames) {
  EXPECT_EQ(ClientLimits("0=4G", {kUuid}), Bytes{4 * kGiB});
  EXPECT_EQ(ClientLimits(kUuid + "=4G", {kUuid}), Bytes{4 * kGiB});
  EXPECT_EQ(ClientLimits("1=1G," + kUuid + "=512M", {kUuid, kOther}), (Bytes{512 * kMiB, kGiB}));
  EXPECT_EQ(ClientLimits("0=4G," + kUuid + "=1G", {kUuid}), Bytes{kGiB}) << "the last one counts";
}

// Measured: "0=2G,1=4G" with one visible GPU limits nothing.
TEST(MpsSettings, OneEntryForNoGpuDropsAllLimits) {
  EXPECT_EQ(ClientLimits("0=2G,1=4G", {kUuid}), Bytes{0});
  EXPECT_EQ(ClientLimits(kUuid + "=2G," + kOther + "=2G", {kUuid}), Bytes{0});
  EXPECT_EQ(ClientLimits("0=2G,1", {kUuid}), Bytes{0});
  EXPECT_EQ(ClientLimits("0=2G,0=lots", {kUuid}), Bytes{0});
  EXPECT_EQ(ClientLimits("=2G", {kUuid}), Bytes{0});
  EXPECT_EQ(ClientLimits("", {kUuid}), Bytes{0});
}

TEST(MpsSettings, DirectoriesAreOfTheMachine) {
  EXPECT_EQ(PipeDirectory(nullptr, "/gpu"), "/gpu/tmp/nvidia-mps");
  EXPECT_EQ(PipeDirectory("", "/gpu"), "/gpu/tmp/nvidia-mps");
  EXPECT_EQ(PipeDirectory("/pipes", "/gpu"), "/pipes");
  EXPECT_EQ(LogDirectory(nullptr, "/gpu"), "/gpu/var/log/nvidia-mps");
}

}  // namespace
}  // namespace gpumux::softgpu::mps
