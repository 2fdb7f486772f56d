// SPDX-License-Identifier: Apache-2.0
//
// 200 tenants that start together. The daemon is one thread, so whatever it does
// for each of them times all of them shows here.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using Steady = std::chrono::steady_clock;

constexpr int kTenants = 200;

double SecondsSince(Steady::time_point start) {
  return std::chrono::duration<double>(Steady::now() - start).count();
}

// Processor time of the sandbox's daemon.
double DaemonSeconds(Sandbox& box) {
  std::ifstream stat("/proc/" + std::to_string(box.DaemonPid()) + "/stat");
  std::string word;
  double ticks = 0;
  for (int i = 1; i <= 15 && stat >> word; ++i) {
    if (i >= 14) ticks += std::stod(word);  // user, system; the daemon's name has no blank
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Starts all, waits for all; each is served and ends well.
double RunCrowd(Sandbox& box, const std::string& mem, const std::string& alloc) {
  const auto start = Steady::now();
  std::vector<Process> all;
  for (int i = 0; i < kTenants; ++i) {
    all.push_back(box.Gpumux({"run", "--mem", mem, "--name", "n" + std::to_string(i), "--",
                              Sandbox::Program("gpumux-workload"), "--alloc", alloc, "--seconds", "0.1"}));
  }
  std::printf("all started after %.2f s\n", SecondsSince(start));
  for (Process& process : all) {
    const Outcome outcome = process.Wait(std::chrono::seconds(200));
    if (outcome.exit_code == 0) continue;
    ADD_FAILURE() << "exit code " << outcome.exit_code << ": " << outcome.out << outcome.err;
    break;
  }
  return SecondsSince(start);
}

void ExpectAllIsBack(Sandbox& box) {
  WaitUntil("all is back", [&] {
    const auto status = box.StatusData();
    const auto& gpu = status["gpus"][0];
    return status["tenants"].empty() && gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_used_bytes"] == 0;
  });
}

TEST(Crowd, TwoHundredTenantsAreServedAtOnce) {
  Sandbox box;
  const double seconds = RunCrowd(box, "640MiB", "20MiB");
  std::printf("%d tenants, all at once: %.2f s, %.2f s of it the daemon's\n", kTenants, seconds,
              DaemonSeconds(box));
  ExpectAllIsBack(box);
}

TEST(Crowd, OfTwoHundredTenantsThoseWaitThatDoNotFit) {
  Sandbox box;
  const double seconds = RunCrowd(box, "4GiB", "3GiB");  // 34 fit
  std::printf("%d tenants, 34 at a time: %.2f s, %.2f s of it the daemon's\n", kTenants, seconds,
              DaemonSeconds(box));
  ExpectAllIsBack(box);
}

}  // namespace
}  // namespace gpumux::test
