// SPDX-License-Identifier: Apache-2.0
#include "cli/cpu_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As the kernel tells it, of this thread.
std::string AllowedNow() {
  std::ifstream status("/proc/thread-self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Cpus_allowed_list:\t")) return line.substr(19);
  }
  return "";
}

int MemoryPolicyNow() {
  int mode = -1;
  ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0);
  return mode;
}

TEST(CpuBinding, HoldsAsLongAsItLives) {
  const std::string before = AllowedNow();
  const CpuList allowed = *ParseCpuList(before);
  const NearGpu near{.cpus = {allowed.back(), kMaxCpus - 1}, .memory_nodes = {0}, .unknown = ""};
  const bool policies = MemoryPolicyNow() == MPOL_DEFAULT;  // else a sandbox refuses the call
  {
    const CpuBinding binding(near);
    EXPECT_THAT(binding.not_bound(), IsEmpty());
    EXPECT_EQ(AllowedNow(), std::to_string(allowed.back()));
    if (policies) {
      EXPECT_EQ(MemoryPolicyNow(), MPOL_PREFERRED);
    }
  }
  EXPECT_EQ(AllowedNow(), before);
  if (policies) {
    EXPECT_EQ(MemoryPolicyNow(), MPOL_DEFAULT);
  }
}

TEST(CpuBinding, SaysWhyThereIsNone) {
  const std::string before = AllowedNow();
  const CpuBinding unknown({.cpus = {}, .memory_nodes = {}, .unknown = "nobody knows"});
  EXPECT_EQ(unknown.not_bound(), "nobody knows");
  const CpuBinding elsewhere({.cpus = {kMaxCpus - 1}, .memory_nodes = {}, .unknown = ""});
  EXPECT_THAT(elsewhere.not_bound(),
              HasSubstr("near its GPU are the processors 8191, and it may use " + before));
  EXPECT_EQ(AllowedNow(), before);
}

}  // namespace
}  // namespace gpumux::cli
