// SPDX-License-Identifier: Apache-2.0
//
// Section E of docs/pitfalls.md: deaths, locks, lifetime.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "../random/host.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr int kOutOfMemory = 2;

class PitfallsE : public ::testing::Test {
 protected:
  Host::Connection StartTenant(const std::string& mem) {
    runs_.push_back(box_.Gpumux({"run", "--name", "t", "--mem", mem, "--", Host::ActorProgram()}));
    const auto actor = host_.Accept();
    return actor ? *actor : Host::Connection{};
  }
  void Told(const Host::Connection& actor, unsigned long* free, unsigned long* total) {
    (void)sscanf(host_.Ask(actor.fd, "told").c_str(), "0 %lu %lu", free, total);
  }

  Sandbox box_;
  Host host_{box_};
  std::vector<Process> runs_;
};

TEST_F(PitfallsE, E6_ARestartWithAnotherLimitHasThatLimit) {
  for (const uint64_t gib : {2, 5, 3}) {
    const auto actor = StartTenant(std::to_string(gib) + "GiB");
    ASSERT_EQ(host_.Do(actor.fd, "init"), 0);
    unsigned long free = 0, total = 0;
    Told(actor, &free, &total);
    EXPECT_EQ(total, gib * kGiB);
    const std::string below = std::to_string((gib - 1) * kGiB), above = std::to_string(gib * kGiB);
    EXPECT_EQ(host_.Do(actor.fd, "alloc 1 plain " + above + " 0"), kOutOfMemory);
    EXPECT_EQ(host_.Do(actor.fd, "alloc 2 plain " + below + " 0"), 0);
    // Even the daemon's death leaves nothing that could be taken for the next one's.
    host_.Ask(actor.fd, "die kill");
    runs_.back().Wait();
    kill(box_.DaemonPid(), SIGKILL);
    WaitUntil("the daemon is gone", [&] { return box_.DaemonPid() == 0; });
  }
}

TEST_F(PitfallsE, E7_AStateFolderThatCannotBeUsedIsSaidAndNothingStarts) {
  const std::string marker = box_.dir() + "/ran";
  const auto refused = [&](const std::string& folder, const char* why) {
    box_.SetEnv("GPUMUX_RUNTIME_DIR", folder);
    const Outcome o = box_.RunGpumux({"run", "--mem", "1GiB", "--", "/usr/bin/touch", marker});
    EXPECT_NE(o.exit_code, 0) << folder;
    EXPECT_THAT(o.err, HasSubstr(why)) << folder;
    EXPECT_NE(access(marker.c_str(), F_OK), 0) << folder;
  };
  std::ofstream(box_.dir() + "/file").put('\n');
  refused(box_.dir() + "/file", "not a folder");
  ASSERT_EQ(symlink("/tmp", (box_.dir() + "/link").c_str()), 0);
  refused(box_.dir() + "/link", "symbolic link");
  refused(box_.dir() + "/no/such/folder", "cannot create");
  refused("/proc/1", "");
}

TEST_F(PitfallsE, E14_AStoppedProcessKeepsNothingButWhatItUses) {
  const auto first = StartTenant("4GiB");
  host_.Ask(first.fd, "fork");
  const auto second = host_.Accept();
  ASSERT_TRUE(second);
  ASSERT_EQ(host_.Do(first.fd, "init"), 0);
  ASSERT_EQ(host_.Do(second->fd, "init"), 0);
  ASSERT_EQ(host_.Do(first.fd, "alloc 1 plain 4194304 0"), 0);
  // Freed bytes stay with it as credit, which it could use without asking.
  ASSERT_EQ(host_.Do(first.fd, "alloc 2 plain 1073741824 0"), 0);
  ASSERT_EQ(host_.Do(first.fd, "free 2"), 0);
  ASSERT_EQ(kill(first.pid, SIGSTOP), 0);
  unsigned long free = 0, total = 0;
  Told(*second, &free, &total);
  EXPECT_GT(free, 2 * kGiB);
  const std::string all = std::to_string(free / (2 * kMiB) * (2 * kMiB));
  EXPECT_EQ(host_.Do(second->fd, "alloc 3 plain " + all + " 0"), 0);
  ASSERT_EQ(kill(first.pid, SIGCONT), 0);
  EXPECT_EQ(host_.Do(first.fd, "alloc 4 plain 1073741824 0"), kOutOfMemory);
  EXPECT_EQ(host_.Do(second->fd, "free 3"), 0);
  EXPECT_EQ(host_.Do(first.fd, "alloc 5 plain 1073741824 0"), 0);
}

TEST_F(PitfallsE, E15_ProgramsGoOnWithoutTheirDaemonAndTheNextOneWaitsForThem) {
  const auto actor = StartTenant("4GiB");
  ASSERT_EQ(host_.Do(actor.fd, "init"), 0);
  ASSERT_EQ(host_.Do(actor.fd, "alloc 1 plain 1073741824 0"), 0);
  ASSERT_EQ(kill(box_.DaemonPid(), SIGKILL), 0);
  WaitUntil("the daemon is gone", [&] { return box_.DaemonPid() == 0; });
  // Within the promise it has what it needs; beyond, it is refused as before.
  EXPECT_EQ(host_.Do(actor.fd, "alloc 2 plain 1073741824 0"), 0);
  EXPECT_EQ(host_.Do(actor.fd, "free 1"), 0);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 3 async 1073741824 0"), 0);
  EXPECT_EQ(host_.Do(actor.fd, "alloc 4 plain 4294967296 0"), kOutOfMemory);
  // Whether the next daemon has the GPU's lock already or not: what the tenant was
  // promised is nobody else's.
  const Outcome refused = box_.RunGpumux({"run", "--mem", "138GiB", "--no-wait", "--", "/bin/true"});
  EXPECT_NE(refused.exit_code, 0) << refused.err;
  EXPECT_EQ(host_.Do(actor.fd, "alloc 5 plain 104857600 0"), 0) << "beside the new daemon";
  EXPECT_LE(host_.Nvml()[actor.pid], 4 * kGiB);
  host_.Ask(actor.fd, "die exit");
  EXPECT_EQ(runs_.back().Wait().exit_code, 0);
  EXPECT_EQ(box_.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
}

}  // namespace
}  // namespace gpumux::test
