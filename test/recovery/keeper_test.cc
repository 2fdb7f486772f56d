// SPDX-License-Identifier: Apache-2.0
//
// What the keeper is there for: daemons, `run`s and keepers that die under
// tenants, and nobody who is locked out (docs/design/keeper.md).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "scene.h"

namespace gpumux::test {
namespace {

// One that works already.
Process Worker(Sandbox& box, const std::string& stop) {
  Process p = Survivor(box, "worker", kGiB, stop);
  EXPECT_TRUE(Works(p));
  return p;
}

// A little promise, now or never: 0, or 4 when the GPU is not open.
int Little(Sandbox& box) {
  return box.RunGpumux({"run", "--mem", "1GiB", "--no-wait", "--", "/bin/true"}).exit_code;
}

void KillDaemon(Sandbox& box) {
  const pid_t daemon = box.DaemonPid();
  ASSERT_NE(daemon, 0);
  ASSERT_EQ(kill(daemon, SIGKILL), 0);
  ASSERT_TRUE(WaitUntil("the daemon is gone", [&] { return box.DaemonPid() != daemon; }));
}

// A process is the last that it is told of a GPU.
bool HoldsAProcess(pid_t keeper) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(keeper) + "/fd", error)) {
    if (std::filesystem::read_symlink(entry.path(), error).string().find("pidfd") != std::string::npos)
      return true;
  }
  return false;
}

// One that has been told of the tenant: it may come to run long after it was started.
pid_t TheKeeper(Sandbox& box, pid_t not_this = 0) {
  pid_t keeper = 0;
  EXPECT_TRUE(WaitUntil("a keeper has been told", [&] {
    keeper = box.KeeperPid();
    return keeper != 0 && keeper != not_this && HoldsAProcess(keeper);
  }));
  return keeper;
}

void ExpectNoKeeper(Sandbox& box) {
  EXPECT_TRUE(WaitUntil("the keeper has ended", [&] { return box.KeeperPid() == 0; }));
}

TEST(KeptGpu, IsOpenAtOnceWithTheNextDaemon) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process run = Worker(box, stop);
  ASSERT_NE(TheKeeper(box), 0);
  // Nobody but the keeper could hand over the GPU.
  run.Signal(SIGSTOP);
  KillDaemon(box);
  EXPECT_EQ(Little(box), 0);
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 8 * kGiB);
  run.Signal(SIGCONT);
  Touch(stop);
  EXPECT_EQ(run.Wait().exit_code, 0) << run.Err();
  kill(box.DaemonPid(), SIGTERM);
  ExpectNoKeeper(box);
}

TEST(KeptGpu, IsHandedToANewKeeperWhenOneDies) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process run = Worker(box, stop);
  const pid_t keeper = TheKeeper(box);
  ASSERT_EQ(kill(keeper, SIGKILL), 0);
  ASSERT_NE(TheKeeper(box, keeper), keeper);
  run.Signal(SIGSTOP);
  KillDaemon(box);
  EXPECT_EQ(Little(box), 0);
  run.Signal(SIGCONT);
  Touch(stop);
  EXPECT_EQ(run.Wait().exit_code, 0) << run.Err();
}

TEST(KeptGpu, NobodyWaitsForAKeeperThatHangsOrCannotBeStarted) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process run = Worker(box, stop);
  kill(TheKeeper(box), SIGSTOP);
  // Grants and ends go on, and so does a take-over: its `run` has the GPU as well.
  EXPECT_EQ(Little(box), 0);
  KillDaemon(box);
  EXPECT_TRUE(WaitUntil("the next daemon gives promises", [&] { return Little(box) == 0; }));
  EXPECT_EQ(Gpu(box, "mem_guaranteed_bytes"), 8 * kGiB);
  EXPECT_NE(DaemonLog(box).find("the keeper does not answer"), std::string::npos);
  // Nobody listens where the keeper should, and nothing can: a folder has its name.
  kill(box.KeeperPid(), SIGKILL);
  const std::string path = box.runtime_dir() + "/sim/keeper.sock";
  ASSERT_TRUE(WaitUntil("it is in the way", [&] {
    unlink(path.c_str());
    return mkdir(path.c_str(), 0700) == 0;
  }));
  ASSERT_TRUE(WaitUntil("it is said", [&] {
    if (const pid_t next = box.KeeperPid()) kill(next, SIGKILL);
    return DaemonLog(box).find("no keeper: ") != std::string::npos;
  }));
  EXPECT_EQ(Little(box), 0);
  Touch(stop);
  EXPECT_EQ(run.Wait().exit_code, 0) << run.Err();
}

TEST(KeptGpu, IsNotHeldForAnIdleDaemon) {
  Sandbox box;
  EXPECT_EQ(Little(box), 0);
  EXPECT_NE(box.DaemonPid(), 0);
  EXPECT_TRUE(WaitUntil("the tenant is over",
                        [&] { return box.StatusData()["gpus"][0]["mem_guaranteed_bytes"] == 0; }));
  kill(box.DaemonPid(), SIGKILL);
  ExpectNoKeeper(box);
}

class KeptFromAnother : public ::testing::Test {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, to become two users";
    ann_.SetUser(23001);
    bob_.SetUser(23002);
    bob_.ShareGpuOf(ann_);
  }
  Sandbox ann_, bob_;
};

// No daemon, no `run`: only the keeper has the GPU's name, as long as the program lives.
TEST_F(KeptFromAnother, AsLongAsAProgramLivesAndNoLonger) {
  const std::string stop = ann_.dir() + "/stop";
  Process run = Worker(ann_, stop);
  const auto tenants = ann_.StatusData()["tenants"];
  ASSERT_EQ(tenants.size(), 1u);
  const pid_t program = tenants[0]["pid"];
  // The daemon cannot miss `run`, and nobody can start another.
  const pid_t daemon = ann_.DaemonPid();
  kill(daemon, SIGSTOP);
  run.Signal(SIGKILL);
  run.Wait();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("Ann's daemon is gone", [&] { return ann_.DaemonPid() == 0; }));
  ASSERT_EQ(kill(program, 0), 0);
  EXPECT_EQ(Little(bob_), 4);
  EXPECT_NE(ann_.KeeperPid(), 0);
  Touch(stop);
  ExpectNoKeeper(ann_);
  EXPECT_TRUE(WaitUntil("Bob gets the GPU", [&] { return Little(bob_) == 0; }));
}

TEST_F(KeptFromAnother, NotByWhatADaemonWithoutTenantsLeavesBehind) {
  EXPECT_EQ(Little(ann_), 0);
  KillDaemon(ann_);
  ExpectNoKeeper(ann_);
  EXPECT_EQ(Little(bob_), 0);
}

// Keeper or daemon dies at one point of the code, once.
class KeeperAtPoint : public ::testing::TestWithParam<const char*> {};

TEST_P(KeeperAtPoint, TenantsNeverNotice) {
  Sandbox box;
  const std::string token = box.dir() + "/token", stop = box.dir() + "/stop";
  Touch(token);
  box.SetEnv("GPUMUX_KILL_AT", std::string(GetParam()) + "@" + token);
  Process run = Worker(box, stop);
  const auto passed = [&] { return access(token.c_str(), F_OK) != 0; };
  // Points of a take-over need a death before them, that of a lease an end.
  if (!passed() && std::string(GetParam()) != "keeper-releasing") KillDaemon(box);
  // Starts a daemon where none is; the first may die at the point.
  ASSERT_TRUE(WaitUntil("a daemon gives promises", [&] { return Little(box) == 0; }));
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 8 * kGiB);
  Touch(stop);
  const Outcome o = run.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  EXPECT_EQ(Little(box), 0);
  EXPECT_TRUE(WaitUntil("everything is free again", [&] {
    const auto gpu = box.StatusData()["gpus"][0];
    return gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_used_bytes"] == 0;
  }));
  EXPECT_TRUE(WaitUntil("the point is passed", passed));
  if (const pid_t daemon = box.DaemonPid()) kill(daemon, SIGTERM);
  ExpectNoKeeper(box);
}

INSTANTIATE_TEST_SUITE_P(Points, KeeperAtPoint,
                         ::testing::Values("keeper-start", "keeper-told", "keeper-taking", "keeper-started",
                                           "keeper-holding", "keeper-forgetting", "keeper-taken",
                                           "keeper-giving", "keeper-releasing"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace gpumux::test
