// SPDX-License-Identifier: Apache-2.0
//
// Daemons that die, under tenants that work (docs/design/takeover.md).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

const std::string kProbe = Sandbox::TestProgram("guard_probe");

TEST(Takeover, TenantsNeverNoticeThatTheirDaemonsDie) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  std::vector<Process> running;
  // The second asks the daemon each time: nothing so large stays as credit.
  for (const auto& [name, bytes] : {std::pair("a", 1 * kGiB), {"b", 7 * kGiB}, {"c", 3 * kGiB}})
    running.push_back(Survivor(box, name, bytes, stop));
  for (auto& p : running) ASSERT_TRUE(Works(p));
  const auto tenants = Tenants(box);
  ASSERT_EQ(tenants.size(), 3u);
  for (int round = 0; round < 3; ++round) {
    const pid_t daemon = box.DaemonPid();
    ASSERT_NE(daemon, 0);
    ASSERT_EQ(kill(daemon, SIGKILL), 0);
    ASSERT_TRUE(WaitUntil("the next daemon has all of them", [&] { return IsWhole(box, daemon, tenants); }));
  }
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 24 * kGiB);
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_unmanaged_bytes"], 0);
  // It promises what is left, and not a byte more.
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "130GiB", "--no-wait", "--", "/bin/true"}).exit_code, 4);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "60GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
  Touch(stop);
  for (auto& p : running) {
    const Outcome o = p.Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("rounds"), std::string::npos) << o.out;
  }
  ExpectEverythingFree(box);
}

TEST(Takeover, AWaitingRunAsksTheNextDaemon) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process holder = box.Gpumux(
      {"run", "--mem", "130GiB", "--name", "holder", "--", kProbe, "survive", std::to_string(kGiB), stop});
  ASSERT_TRUE(Works(holder, 130 * kGiB));
  Process waiter = box.Gpumux({"run", "--mem", "60GiB", "--name", "waiter", "--", "/bin/echo", "served"});
  ASSERT_TRUE(WaitUntil("it waits", [&] { return Tenants(box).size() == 2; }));
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("it waits again", [&] {
    return box.DaemonPid() != 0 && box.DaemonPid() != daemon && Tenants(box).size() == 2;
  }));
  Touch(stop);
  EXPECT_EQ(holder.Wait().exit_code, 0);
  const Outcome o = waiter.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "served\n");
}

TEST(Takeover, ATenantThatEndedMeanwhileHoldsNothing) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop", other_stop = box.dir() + "/other";
  Process gone = Survivor(box, "gone", kGiB, stop), stays = Survivor(box, "stays", kGiB, other_stop);
  for (Process* p : {&gone, &stays}) ASSERT_TRUE(Works(*p));
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGSTOP);  // it sees nothing of what comes
  kill(gone.pid(), SIGKILL);
  Touch(stop);
  gone.Wait();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("one is left", [&] {
    return box.DaemonPid() != daemon && box.DaemonPid() != 0 && Tenants(box).size() == 1;
  }));
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 8 * kGiB);
  Touch(other_stop);
  EXPECT_EQ(stays.Wait().exit_code, 0);
  ExpectEverythingFree(box);
}

TEST(Takeover, WithoutAStoreThereAreNoNewPromises) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim";
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  ASSERT_EQ(mkdir((dir + "/leases.db").c_str(), 0700), 0);
  const Outcome o = box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"});
  EXPECT_EQ(o.exit_code, 3) << o.err;
  EXPECT_NE(o.err.find("leases.db"), std::string::npos) << o.err;
}

TEST(Takeover, ABrokenStoreIsPutAside) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim";
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  std::ofstream(dir + "/leases.db") << std::string(8192, 'x');
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
  EXPECT_EQ(access((dir + "/leases.db.broken").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace gpumux::test
