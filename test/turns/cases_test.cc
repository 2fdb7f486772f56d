// SPDX-License-Identifier: Apache-2.0
//
// Turns of holders that are well, stopped, killed, and without a daemon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST(TurnsCases, ThreeQuartersAndOneQuarter) {
  TurnsBox box;
  const auto parts = box.PartsOf({{"a", "75%"}, {"b", "25%"}}, 1.5);
  EXPECT_NEAR(parts[0] / (parts[0] + parts[1]), 0.75, 0.075);
  EXPECT_GT(parts[0] + parts[1], 0.5);
}

TEST(TurnsCases, AMinimumThatHasNoRoomWaitsAndSaysWhy) {
  TurnsBox box;
  Process first = box.Tenant("first", "60%", {"--hold", "60"});
  WaitUntil("it is there", [&] { return box.ProgramOf("first") != 0; });
  const Outcome refused =
      box.RunGpumux({"run", "--mode", "turns", "--no-wait", "--share", "50%", "--", "true"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err,
              HasSubstr("needs 50 % of GPU 0's time, of which 60 % are guaranteed to others (first)"));
  EXPECT_EQ(
      box.RunGpumux({"run", "--mode", "turns", "--no-wait", "--share", "40%:50%", "--", "true"}).exit_code,
      0);
  Process waits = box.Gpumux({"run", "--mode", "turns", "--share", "50%", "--name", "waits", "--", "true"});
  WaitUntil("it waits", [&] {
    const Json status = box.StatusData();
    return std::any_of(status["tenants"].begin(), status["tenants"].end(),
                       [](const Json& tenant) { return tenant["state"] == "waiting"; });
  });
  first.Signal(SIGTERM);
  first.Wait();
  EXPECT_EQ(waits.Wait().exit_code, 0);
}

TEST(TurnsCases, AStoppedProgramsTurnsAreTheOthers) {
  TurnsBox box;
  Process a = box.Tenant("a", "", {"--seconds", "60"}), b = box.Tenant("b", "", {"--seconds", "60"});
  box.WaitUntilTheyTakeTurns({"a", "b"});
  const pid_t stopped = box.ProgramOf("a");
  ASSERT_GT(stopped, 0);
  kill(stopped, SIGSTOP);
  const double a_had = box.GpuSeconds("a"), b_had = box.GpuSeconds("b");
  WaitUntil("b works on", [&] { return box.GpuSeconds("b") > b_had + 1; });
  // Once what it had on the GPU had its grace time, and it was seen to be stopped, it has nothing there.
  WaitUntil("a is out", [&] { return box.Turns("a")["state"] == "idle"; });
  const double a_out = box.GpuSeconds("a"), b_then = box.GpuSeconds("b");
  EXPECT_LT(a_out, a_had + 2);
  WaitUntil("b works on", [&] { return box.GpuSeconds("b") > b_then + 0.5; });
  // Until it was seen to be stopped it was given a few turns, of 5 ms each, that it did not use.
  EXPECT_LT(box.GpuSeconds("a"), a_out + 0.05);
  const Json events = Json::parse(box.RunGpumux({"events", "--tenant", "a", "--json"}).out);
  const auto told = std::find_if(events["data"]["events"].begin(), events["data"]["events"].end(),
                                 [](const Json& event) { return event["kind"] == "turn-taken"; });
  ASSERT_NE(told, events["data"]["events"].end()) << events.dump();
  EXPECT_THAT((*told)["text"].get<std::string>(), StartsWith("its turn was taken: "));
  kill(stopped, SIGCONT);
  const uint64_t ended = box.Ended("a");
  WaitUntil("a takes turns again", [&] { return box.Ended("a") >= ended + 3; });
  a.Signal(SIGKILL), b.Signal(SIGKILL);
}

TEST(TurnsCases, AKilledProgramsTurnsAreTheOthers) {
  TurnsBox box;
  Process a = box.Tenant("a", "", {"--seconds", "60"}), b = box.Tenant("b", "", {"--seconds", "60"}),
          c = box.Tenant("c", "", {"--seconds", "60"});
  box.WaitUntilTheyTakeTurns({"a", "b", "c"});
  const pid_t killed = box.ProgramOf("a");
  ASSERT_GT(killed, 0);
  kill(killed, SIGKILL);
  EXPECT_EQ(a.Wait().exit_code, 128 + SIGKILL);
  const uint64_t b_ended = box.Ended("b"), c_ended = box.Ended("c");
  WaitUntil("they take turns",
            [&] { return box.Ended("b") >= b_ended + 5 && box.Ended("c") >= c_ended + 5; });
  // Its part is theirs.
  WaitUntil("a half is each one's part", [&] {
    const Json of_b = box.Turns("b"), of_c = box.Turns("c");
    return std::abs(of_b["part_ratio"].get<double>() - 0.5) < 0.01 &&
           std::abs(of_c["part_ratio"].get<double>() - 0.5) < 0.01;
  });
  b.Signal(SIGKILL), c.Signal(SIGKILL);
}

TEST(TurnsCases, WithoutADaemonAllGatesAreOpen) {
  TurnsBox box;
  Process a = box.Tenant("a", "", {"--seconds", "2"}), b = box.Tenant("b", "", {"--seconds", "2"});
  box.WaitUntilTheyTakeTurns({"a", "b"});
  const pid_t daemon = box.DaemonPid();
  ASSERT_GT(daemon, 0);
  kill(daemon, SIGKILL);
  for (Process* process : {&a, &b}) {
    const Outcome outcome = process->Wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json report = Json::parse(outcome.out);
    // Its gate was closed until the beat was stale, at the longest.
    EXPECT_LT(report["max_us"].get<double>(), 450'000);
    EXPECT_GT(report["rate_per_s"].get<double>(), 40);
  }
}

}  // namespace
}  // namespace gpumux::test
