// SPDX-License-Identifier: Apache-2.0
//
// `run --cpu-affinity`: on which processors the program runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"
#include "base/cpu_list.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kAllowed = "grep Cpus_allowed_list /proc/self/status | cut -f2";

// A machine in which the processors `cpus` are near its GPUs.
void Near(const Sandbox& box, const std::string& cpus) {
  const std::string folder = box.softgpu_dir() + "/sys/devices/system/node";
  std::filesystem::create_directories(folder + "/node0");
  std::ofstream(folder + "/has_cpu") << "0\n";
  std::ofstream(folder + "/node0/cpulist") << cpus << "\n";
}

// Those that a process may use; 0: this test.
CpuList AllowedTo(pid_t pid) {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(pid, sizeof set, &set), 0);
  CpuList cpus;
  for (unsigned i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cpus.push_back(i);
  }
  return cpus;
}

CpuList Mine() { return AllowedTo(0); }

TEST(CpuAffinity, AutoIsOnTheProcessorsNearTheGpuThatItMayUse) {
  Sandbox box;
  const std::string last = std::to_string(Mine().back());
  Near(box, last + ",8000-8100");
  const Outcome run =
      box.RunGpumux({"run", "--cpu-affinity", "auto", "--summary", "--", "sh", "-c", kAllowed});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, last + "\n");
  EXPECT_THAT(run.err, Not(HasSubstr("any processor")));
  // Neither a program that does not ask nor the daemon is bound by it.
  EXPECT_EQ(box.RunGpumux({"run", "--", "sh", "-c", kAllowed}).out, FormatCpuList(Mine()) + "\n");
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  EXPECT_EQ(AllowedTo(daemon), Mine());
  box.SetEnv("GPUMUX_CPU_AFFINITY", "auto");
  EXPECT_EQ(box.RunGpumux({"run", "--", "sh", "-c", kAllowed}).out, last + "\n");
  EXPECT_EQ(box.RunGpumux({"run", "--cpu-affinity", "none", "--", "sh", "-c", kAllowed}).out,
            FormatCpuList(Mine()) + "\n");
  EXPECT_EQ(box.RunGpumux({"run", "--cpu-affinity", "all", "--", "true"}).exit_code, 2);
}

TEST(CpuAffinity, IsShownAndProvenByWhatTheKernelSays) {
  Sandbox box;
  const std::string last = std::to_string(Mine().back());
  Near(box, last);
  Process bound = box.Gpumux({"run", "--name", "bound", "--cpu-affinity", "auto", "--", "sleep", "1000"});
  Process free = box.Gpumux({"run", "--name", "free", "--", "sleep", "1000"});
  WaitUntil("both run", [&] {
    const auto tenants = box.StatusData()["tenants"];
    return tenants.size() == 2 && tenants[0]["state"] == "running" && tenants[1]["state"] == "running";
  });
  // Its process is there a moment before it has bound itself.
  WaitUntil("it is bound", [&] {
    const auto now = box.StatusData();
    return std::any_of(now["tenants"].begin(), now["tenants"].end(), [&](const auto& tenant) {
      return tenant["name"] == "bound" && tenant["cpu_affinity"]["cpus"] == last;
    });
  });
  const auto status = box.StatusData();
  for (const auto& tenant : status["tenants"]) {
    const bool is_bound = tenant["name"] == "bound";
    EXPECT_EQ(tenant["cpu_affinity"]["asked"], is_bound ? "auto" : "none");
    EXPECT_EQ(tenant["cpu_affinity"]["near_cpus"], last);
    EXPECT_EQ(tenant["cpu_affinity"]["near_memory_nodes"], "0");
    EXPECT_EQ(tenant["cpu_affinity"]["near_by"], "NVML");
    EXPECT_EQ(tenant["cpu_affinity"]["cpus"], is_bound ? last : FormatCpuList(Mine()));
  }
  EXPECT_THAT(box.RunGpumux({"explain", "bound"}).out, HasSubstr("cpu affinity: proven, by the kernel"));
  EXPECT_THAT(box.RunGpumux({"explain", "free"}).out, HasSubstr("cpu affinity: not promised"));
  for (Process* process : {&bound, &free}) {
    process->Signal(SIGTERM);
    process->Wait();
  }
}

TEST(CpuAffinity, WhatIsNotKnownIsSaidAndNotBound) {
  Sandbox box;
  Near(box, "8000");
  const std::vector<std::string> command = {"run", "--cpu-affinity", "auto", "--summary", "--", "sh",
                                            "-c",  kAllowed};
  Outcome run = box.RunGpumux(command);
  EXPECT_EQ(run.out, FormatCpuList(Mine()) + "\n");
  EXPECT_THAT(
      run.err,
      HasSubstr("; it ran on any processor, though --cpu-affinity auto: near its GPU are the processors "
                "8000, and it may use "));
  Sandbox silent;
  silent.SetEnv("GPUMUX_SOFTGPU_FAULTS", "fail nvmlDeviceGetCpuAffinity with NVML_ERROR_NOT_SUPPORTED");
  run = silent.RunGpumux(command);
  EXPECT_EQ(run.out, FormatCpuList(Mine()) + "\n");
  EXPECT_THAT(run.err, HasSubstr("neither NVML nor the kernel says which processors are near it"));
}

}  // namespace
}  // namespace gpumux::test
