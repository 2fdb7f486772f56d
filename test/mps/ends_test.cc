// SPDX-License-Identifier: Apache-2.0
//
// How clients of MPS are stopped, and what a daemon that leaves leaves behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

// What the program of the tenant says when it is stopped in the middle of its work.
std::string Stopped(MpsBox& box, const std::string& how, const std::string& ms) {
  Process tenant = box.Dying({"stays", how, ms});
  EXPECT_EQ(box.RunGpumux({"stop", "--grace", "0s", "--signal", "CONT", "dying"}).exit_code, 0);
  return tenant.Wait().out;
}

TEST(Stopping, WhatRunsMayEndBeforeTheServerEndsIt) {
  MpsBox box;
  EXPECT_THAT(Stopped(box, "waiting", "400"), HasSubstr("synchronise: 0"));
}

TEST(Stopping, NothingMoreIsLaunchedAndWhatWasLaunchedEnds) {
  MpsBox box;
  EXPECT_THAT(Stopped(box, "launching", "20"), HasSubstr("launch: 810, all before have ended"));
}

TEST(Leaving, EndsTheControlDaemonsThatNobodyNeeds) {
  MpsBox box;
  EXPECT_EQ(box.RunGpumux({"run", "--mode", "mps", "--mem", "4GiB", "--", Sandbox::Program("gpumux-workload"),
                           "--kernel-us", "2000", "--seconds", "0.05"})
                .exit_code,
            0);
  pid_t control = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(box.runtime_dir())) {
    if (entry.path().filename() == "nvidia-cuda-mps-control.pid") std::ifstream(entry.path()) >> control;
  }
  ASSERT_GT(control, 1);
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGTERM);
  EXPECT_TRUE(WaitUntil("the daemon has left", [&] { return box.DaemonPid() == 0; }));
  // Its reaper may be late.
  EXPECT_TRUE(WaitUntil("its control daemon has ended", [&] { return kill(control, 0) != 0; }));
}

}  // namespace
}  // namespace gpumux::test
