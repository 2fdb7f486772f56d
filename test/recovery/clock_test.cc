// SPDX-License-Identifier: Apache-2.0
//
// Wall clocks that jump by hours while tenants run and requests wait.
#include <gtest/gtest.h>
#include <signal.h>
#include <time.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

class Clock : public ::testing::Test {
 protected:
  Clock() {
    box.SetEnv("LD_PRELOAD", Sandbox::TestProgram("libshifted_clock.so"));
    box.SetEnv("SHIFTED_CLOCK", shift);
  }
  void Jump(long seconds) {
    std::ofstream(shift + ".new") << seconds;
    std::rename((shift + ".new").c_str(), shift.c_str());
  }
  // How far the daemon's wall clock is ahead, in whole hours.
  long HoursAhead() {
    const auto parsed = nlohmann::json::parse(box.RunGpumux({"status", "--json"}).out, nullptr, false);
    tm there{};
    if (!parsed.contains("generated_at") ||
        strptime(parsed["generated_at"].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%S", &there) == nullptr)
      return 999;
    return std::lround(static_cast<double>(timegm(&there) - std::time(nullptr)) / 3600);
  }

  Sandbox box;
  std::string shift = box.dir() + "/shift";
};

TEST_F(Clock, ThatJumpsByHoursEndsNeitherTimesNorWaits) {
  const std::string stop = box.dir() + "/stop";
  Process timed = box.Gpumux({"run", "--mem", "100GiB", "--time", "1h", "--name", "timed", "--",
                              Sandbox::TestProgram("guard_probe"), "survive", std::to_string(kGiB), stop});
  ASSERT_TRUE(Works(timed, 100 * kGiB));
  Process waits =
      box.Gpumux({"run", "--mem", "100GiB", "--wait=1h", "--name", "waits", "--", "/bin/echo", "served"});
  ASSERT_TRUE(WaitUntil("it waits", [&] { return Tenants(box).size() == 2; }));
  const auto tenants = Tenants(box);
  for (const long hours : {5, -5, 0}) {
    Jump(hours * 3600);
    ASSERT_TRUE(WaitUntil("the daemon's clock has jumped", [&] { return HoursAhead() == hours; }));
    // A request that waits for a second waits for a second, and meanwhile the daemon has
    // looked at everything.
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(box.RunGpumux({"run", "--mem", "100GiB", "--wait=1s", "--", "/bin/true"}).exit_code, 5);
    const auto took = std::chrono::steady_clock::now() - began;
    EXPECT_GE(took, std::chrono::milliseconds(900));
    EXPECT_LT(took, std::chrono::seconds(10));
    EXPECT_EQ(Tenants(box), tenants);
  }
  // What is left of their hours the next daemon finds out by itself.
  Jump(5 * 3600);
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  ASSERT_TRUE(WaitUntil("the next daemon has both", [&] {
    return box.DaemonPid() != 0 && box.DaemonPid() != daemon && Tenants(box).size() == 2;
  }));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "100GiB", "--wait=100ms", "--", "/bin/true"}).exit_code, 5);
  EXPECT_EQ(Tenants(box)["timed"], tenants.at("timed"));
  Touch(stop);
  EXPECT_EQ(timed.Wait().exit_code, 0) << timed.Out();
  EXPECT_EQ(waits.Wait().out, "served\n");
  ExpectEverythingFree(box);
}

TEST_F(Clock, ThatJumpedDoesNotKeepATimeFromBeingOver) {
  Process timed = box.Gpumux({"run", "--mem", "8GiB", "--time", "2s", "--name", "timed", "--",
                              Sandbox::TestProgram("guard_probe"), "survive", std::to_string(kGiB),
                              box.dir() + "/never"});
  ASSERT_TRUE(Works(timed));
  // What is left of the time the next daemon has to find out by itself.
  Jump(-5 * 3600);
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  EXPECT_NE(timed.Wait(std::chrono::seconds(20)).exit_code, 0);
  ExpectEverythingFree(box);
}

}  // namespace
}  // namespace gpumux::test
