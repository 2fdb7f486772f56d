// SPDX-License-Identifier: Apache-2.0
//
// `run` killed, stopped, or left by its terminal, at each of its states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

class RunSignals : public ::testing::Test {
 protected:
  std::string StateOf(const std::string& name) {
    for (const auto& tenant : StatusList(box, "tenants")) {
      if (tenant["name"] == name) return tenant["state"];
    }
    return "none";
  }
  // Room for no other: 130 GiB until the file is there.
  Process Holder() {
    return box.Gpumux({"run", "--mem", "130GiB", "--name", "holder", "--",
                       Sandbox::TestProgram("guard_probe"), "survive", std::to_string(kGiB), stop});
  }
  Process Waiter() {
    return box.Gpumux({"run", "--mem", "60GiB", "--name", "waits", "--", "/bin/echo", "served"});
  }

  Sandbox box;
  std::string stop = box.dir() + "/stop";
};

TEST_F(RunSignals, EndAWaitAndLeaveNothing) {
  Process holder = Holder();
  ASSERT_TRUE(Works(holder, 130 * kGiB));
  for (const int signal : {SIGHUP, SIGTERM, SIGINT, SIGKILL}) {
    Process waiter = Waiter();
    ASSERT_TRUE(WaitUntil("it waits", [&] { return StateOf("waits") == "waiting"; }));
    waiter.Signal(signal);
    EXPECT_EQ(waiter.Wait().exit_code, 128 + signal);
    ASSERT_TRUE(WaitUntil("nobody waits", [&] { return StateOf("waits") == "none"; }));
  }
  Touch(stop);
  EXPECT_EQ(holder.Wait().exit_code, 0);
  ExpectEverythingFree(box);
}

TEST_F(RunSignals, AStoppedRunKeepsItsPlaceAndStartsWhenItGoesOn) {
  Process holder = Holder();
  ASSERT_TRUE(Works(holder, 130 * kGiB));
  Process waiter = Waiter();
  ASSERT_TRUE(WaitUntil("it waits", [&] { return StateOf("waits") == "waiting"; }));
  waiter.Signal(SIGSTOP);
  Touch(stop);
  EXPECT_EQ(holder.Wait().exit_code, 0);
  // It has its bytes, and its program does not run without it.
  ASSERT_TRUE(WaitUntil("it is granted", [&] { return StateOf("waits") == "starting"; }));
  EXPECT_EQ(waiter.Out(), "");
  // What came to it while it slept outlives the daemon too.
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  kill(daemon, SIGKILL);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "100GiB", "--no-wait", "--", "/bin/true"}).exit_code, 4);
  waiter.Signal(SIGCONT);
  const Outcome o = waiter.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "served\n");
  ExpectEverythingFree(box);
}

TEST_F(RunSignals, AHangUpOfTheTerminalReachesTheProgram) {
  Process a = Survivor(box, "a", kGiB, stop);
  ASSERT_TRUE(Works(a));
  a.Signal(SIGHUP);
  EXPECT_EQ(a.Wait().exit_code, 128 + SIGHUP);
  ExpectEverythingFree(box);
}

TEST_F(RunSignals, AKilledOrStoppedRunLeavesItsProgramItsPromise) {
  Process killed = Survivor(box, "killed", 7 * kGiB, stop), stopped = Survivor(box, "stopped", kGiB, stop);
  ASSERT_TRUE(Works(killed));
  ASSERT_TRUE(Works(stopped));
  const auto tenants = Tenants(box);
  killed.Signal(SIGKILL);
  EXPECT_EQ(killed.Wait().exit_code, 128 + SIGKILL);
  stopped.Signal(SIGSTOP);
  const pid_t daemon = box.DaemonPid();
  EXPECT_EQ(Tenants(box), tenants);
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 16 * kGiB);
  // Nor does the next daemon need either.
  ASSERT_NE(daemon, 0);
  kill(daemon, SIGKILL);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "130GiB", "--no-wait", "--", "/bin/true"}).exit_code, 4);
  ASSERT_TRUE(WaitUntil("the next one has both", [&] { return Tenants(box) == tenants; }));
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 16 * kGiB);
  stopped.Signal(SIGCONT);
  // It hands the GPU's lock over.
  ASSERT_TRUE(WaitUntil("new promises", [&] { return Gpu(box, "mem_promisable_bytes") > 0; }));
  Touch(stop);
  EXPECT_EQ(stopped.Wait().exit_code, 0) << stopped.Out();
  ASSERT_TRUE(WaitUntil("both have ended", [&] { return Tenants(box).empty(); }));
  ExpectEverythingFree(box);
}

}  // namespace
}  // namespace gpumux::test
