// SPDX-License-Identifier: Apache-2.0
//
// Ends that are not a program's own doing, and those that a daemon's death falls into: what the history says
// of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../mps/scene.h"
#include "../support/installed.h"
#include "past.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

bool SomeRunsProgram(Sandbox& box, const std::string& name) {
  const json status = box.StatusData();
  for (const json& tenant : status["tenants"]) {
    if (tenant["name"] == name && tenant["pid"].is_number()) return true;
  }
  return false;
}

// Whoever comes next starts the next daemon.
void StartNextDaemon(Sandbox& box) {
  EXPECT_EQ(box.RunGpumux({"run", "--name", "next", "--mem", "1GiB", "--", "true"}).exit_code, 0);
}

// Tenants whose work is lost and who notice it later, perhaps only after their daemon is dead.
class UnderMps : public ::testing::TestWithParam<bool> {
 protected:
  // Uses the GPU when it is told to go on. `worked`: it has launched before.
  Process Waits(const std::string& name, bool worked) {
    Process p =
        box_.Tenant(name, {}, {Sandbox::TestProgram("mps_probe"), "notices", go_, worked ? "1" : "0"});
    EXPECT_TRUE(WaitUntil(name + " waits", [&] { return p.Out().find("busy") != std::string::npos; }))
        << p.Err();
    return p;
  }

  void Fault() {
    (void)box_
        .Tenant("culprit", {}, {Sandbox::Program("gpumux-workload"), "--seconds", "0.1", "--end", "fault"})
        .Wait();
  }

  void GoOn() {
    if (GetParam()) {
      const pid_t daemon = box_.DaemonPid();
      KillDaemon(box_);
      ASSERT_TRUE(WaitUntil("the next daemon serves", [&] {
        const pid_t now = box_.DaemonPid();
        return now != 0 && now != daemon && box_.RunGpumux({"history"}).exit_code == 0;
      }));
    }
    Touch(go_);
  }

  json Noticed(Process& waits, const std::string& name) {
    EXPECT_EQ(waits.Wait().exit_code, 1) << waits.Out();
    const json past = Past(box_, name);
    EXPECT_EQ(past["ended"]["exit_code"], 1) << past.dump();
    return past;
  }

  MpsBox box_;
  const std::string go_ = box_.dir() + "/go";
};

TEST_P(UnderMps, OfTheNeighbourWhoseFaultItWas) {
  Process idle = Waits("idle", false);
  Fault();
  const json culprit = Past(box_, "culprit");
  EXPECT_EQ(culprit["outcome"], "own-fault") << culprit.dump();
  GoOn();
  const json past = Noticed(idle, "idle");
  EXPECT_EQ(past["outcome"], "neighbour-fault") << past.dump();
  EXPECT_EQ(past["ended"]["lost_work"], "neighbour-fault");
  EXPECT_EQ(past["ended"]["why"],
            "killed by fault of tenant " + culprit["id"].get<std::string>() + " (culprit)");
}

// Both had work on the GPU, and the driver does not tell whose fault it was: nobody is blamed.
TEST_P(UnderMps, OfAFaultThatNobodyIsNamedFor) {
  Process works = Waits("works", true);
  Fault();
  GoOn();
  for (const json& past : {Past(box_, "culprit"), Noticed(works, "works")}) {
    EXPECT_EQ(past["outcome"], "unknown-fault") << past.dump();
    EXPECT_EQ(past["ended"]["lost_work"], "unknown-fault");
  }
}

TEST_P(UnderMps, OfTheServersDeath) {
  Process works = Waits("works", true);
  kill(box_.ServerPid(), SIGKILL);
  ASSERT_TRUE(WaitUntil("that is told", [&] { return !box_.Events("mps-server-lost").empty(); }));
  GoOn();
  const json past = Noticed(works, "works");
  EXPECT_EQ(past["outcome"], "mps-server") << past.dump();
  EXPECT_EQ(past["ended"]["why"], "its MPS server died");
}

INSTANTIATE_TEST_SUITE_P(History, UnderMps, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "ADaemonDiedMeanwhile" : "OneDaemon"; });

TEST(HistoryEndings, OfAReservation) {
  Sandbox box;
  Process outside = box.Start({"/bin/sleep", "600"});
  ASSERT_EQ(box.RunGpumux({"reserve", "--pid", std::to_string(outside.pid()), "--mem", "3GiB"}).exit_code, 0);
  const auto name = box.StatusData()["tenants"][0]["name"].get<std::string>();
  outside.Signal(SIGKILL);
  EXPECT_EQ(Past(box, name)["outcome"], "released");
}

TEST(HistoryEndings, OfAProgramThatCouldNotBeStarted) {
  Sandbox box;
  const Installed installed(box);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(installed.dir())) {
    if (entry.path().filename() == "nvidia-cuda-mps-control") std::filesystem::remove(entry.path());
  }
  const Outcome o = box.Run({installed.Path("bin/gpumux"), "run", "--mode", "mps", "--mem", "1GiB", "--name",
                             "never", "--", "/bin/echo", "ran"});
  EXPECT_EQ(o.exit_code, 7) << o.err;
  const json past = Past(box, "never");
  EXPECT_EQ(past["outcome"], "not-started") << past.dump();
  EXPECT_THAT(past["ended"]["why"].get<std::string>(), HasSubstr("nvidia-cuda-mps-control is not installed"));
}

// Only `run` would know its exit code.
TEST(HistoryEndings, OfOneWhoseRunWasKilled) {
  for (const bool daemon_too : {false, true}) {
    Sandbox box;
    const std::string go = box.dir() + "/go";
    Process run = box.Gpumux({"run", "--mem", "1GiB", "--name", "alone", "--", "/bin/sh", "-c",
                              "while [ ! -e " + go + " ]; do sleep 0.02; done; exit 3"});
    ASSERT_TRUE(WaitUntil("it runs", [&] { return SomeRunsProgram(box, "alone"); }));
    run.Signal(SIGKILL);
    run.Wait();
    if (daemon_too) {
      KillDaemon(box);
      StartNextDaemon(box);
    }
    Touch(go);
    const json past = Past(box, "alone");
    EXPECT_EQ(past["outcome"], "unknown") << past.dump();
    EXPECT_EQ(past["ended"]["exit_code"], nullptr);
    EXPECT_EQ(past["ended"]["why"], "ended after its run command was gone");
  }
}

TEST(HistoryEndings, SayWhoStoppedIt) {
  Sandbox box;
  Process run = box.Gpumux({"run", "--mem", "1GiB", "--name", "victim", "--", "sleep", "600"});
  ASSERT_TRUE(WaitUntil("it runs", [&] { return SomeRunsProgram(box, "victim"); }));
  const auto owner = box.StatusData()["tenants"][0]["owner"].get<std::string>();
  ASSERT_EQ(box.RunGpumux({"stop", "victim"}).exit_code, 0);
  run.Wait();
  const json past = Past(box, "victim");
  EXPECT_EQ(past["outcome"], "stopped") << past.dump();
  EXPECT_THAT(past["ended"]["why"].get<std::string>(), HasSubstr(owner));
  EXPECT_EQ(past["events"][0]["kind"], "stopping");
}

// The daemon dies when it has heard of the end, and before the history has: what it knew of the tenant was in
// the memory of the two that are dead.
TEST(HistoryEndings, OfOneThatWasRefusedMemoryAndWhoseDaemonDied) {
  for (const char* const point : {"program-ended", "end-stored", "lease-ending", "lease-finished"}) {
    Sandbox box;
    const std::string token = box.dir() + "/token";
    std::ofstream(token).flush();
    box.SetEnv("GPUMUX_KILL_AT", std::string(point) + "@" + token);
    const Outcome o = box.RunGpumux({"run", "--mem", "2GiB", "--name", "greedy", "--",
                                     Sandbox::Program("gpumux-workload"), "--alloc", "3GiB"});
    EXPECT_EQ(o.exit_code, 3) << o.err;
    ASSERT_TRUE(WaitUntil("the daemon died there", [&] { return access(token.c_str(), F_OK) != 0; }))
        << point;
    StartNextDaemon(box);
    const json past = Past(box, "greedy");
    EXPECT_EQ(past["outcome"], "out-of-memory") << point << past.dump();
    EXPECT_EQ(past["refusals"]["own_limit"], 1) << point;
    EXPECT_EQ(past["refusals"]["last_refused_bytes"], uint64_t{3} << 30) << point;
    EXPECT_EQ(past["ended"]["exit_code"], 3) << point;
  }
}

}  // namespace
}  // namespace gpumux::test
