// SPDX-License-Identifier: Apache-2.0
//
// Deaths at work while those die who hold the descriptors of the dead: the keeper,
// the daemon (docs/design/mps.md, "Deaths").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <optional>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A neighbour, and one that always has work under way; both are held.
class HeldAtWork : public ::testing::Test {
 protected:
  void SetUp() override {
    // Else the let-go would be waited for longer than it takes.
    std::ofstream(box_.ConfigFile()) << "[mps]\nhold_min = \"300ms\"\nhold_max = \"300ms\"\n";
    if (!token_.empty()) {
      Touch(token_);
      box_.SetEnv("GPUMUX_KILL_AT", point_ + "@" + token_);
    }
    neighbour_.emplace(box_.Neighbour());
    before_ = box_.UsedBytes();
    ASSERT_TRUE(WaitUntil("the neighbour's are held", [&] { return Devices(box_.KeeperPid()) > 0; }));
    const size_t of_one = Devices(box_.KeeperPid());
    dying_.emplace(box_.Dying({"keeps", "20"}));
    ASSERT_TRUE(WaitUntil("both are held", [&] { return Devices(box_.KeeperPid()) == 2 * of_one; }));
    of_both_ = 2 * of_one;
    daemon_ = box_.DaemonPid();
    keeper_ = box_.KeeperPid();
  }
  // As if nothing had been, but for the dead.
  void ExpectAllIsWell() {
    box_.ExpectFreed(before_);
    box_.ExpectUnharmed(*neighbour_);
    EXPECT_THAT(box_.Events("mps-fault"), IsEmpty());
    dying_->Wait();
    box_.ExpectANewcomerIsServed();
  }
  void AwaitTheNextDaemon() {
    ASSERT_TRUE(WaitUntil("the next daemon", [&] {
      const pid_t next = box_.DaemonPid();
      return next != 0 && next != daemon_ && box_.RunGpumux({"status"}).exit_code == 0;
    }));
  }
  bool DeathIsTold() {
    return WaitUntil("the death is told", [&] { return !box_.Events("died-at-work").empty(); });
  }

  MpsBox box_;
  std::string point_, token_;  // where one is to die, and the file that says that it has not yet
  std::optional<Process> neighbour_, dying_;
  uint64_t before_ = 0;
  size_t of_both_ = 0;
  pid_t daemon_ = 0, keeper_ = 0;
};

TEST_F(HeldAtWork, ByTheNextKeeperAfterADeathOfTheFirst) {
  kill(keeper_, SIGKILL);
  ASSERT_TRUE(WaitUntil("the next keeper has all of them", [&] {
    const pid_t next = box_.KeeperPid();
    return next != 0 && next != keeper_ && Devices(next) == of_both_;
  }));
  box_.Kill("dying", SIGKILL);
  ASSERT_TRUE(DeathIsTold());
  EXPECT_THAT(box_.Events("died-at-work"), ElementsAre(HasSubstr(" descriptors held for ")));
  ExpectAllIsWell();
}

// The keeper needs nobody to know what to do.
TEST_F(HeldAtWork, WithoutADaemonThatSeesTheDeath) {
  const pid_t program = box_.ProgramOf("dying");
  kill(daemon_, SIGSTOP);
  kill(program, SIGKILL);
  ASSERT_TRUE(WaitUntil("it is dead", [&] { return dying_->Ended() || kill(program, 0) != 0; }));
  kill(daemon_, SIGKILL);
  AwaitTheNextDaemon();
  EXPECT_EQ(box_.KeeperPid(), keeper_);
  ExpectAllIsWell();
}

TEST_F(HeldAtWork, ThroughADeathOfTheDaemonAfterTheDeath) {
  box_.Kill("dying", SIGKILL);
  ASSERT_TRUE(DeathIsTold());
  kill(daemon_, SIGKILL);
  AwaitTheNextDaemon();
  EXPECT_EQ(box_.KeeperPid(), keeper_);
  ExpectAllIsWell();
}

}  // namespace
}  // namespace gpumux::test
