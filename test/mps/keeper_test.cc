// SPDX-License-Identifier: Apache-2.0
//
// Deaths at work while those die who hold the descriptors of the dead: the keeper,
// the daemon (docs/design/mps.md, "Deaths").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A neighbour, and one with work under way; both are held, the dead for `hold`.
class HeldAtWork : public ::testing::Test {
 protected:
  void Begin(const std::string& hold, const std::vector<std::string>& work) {
    std::ofstream(box_.ConfigFile()) << "[mps]\nhold_min = \"" << hold << "\"\nhold_max = \"" << hold
                                     << "\"\n";
    neighbour_.emplace(box_.Neighbour());
    before_ = box_.UsedBytes();
    ASSERT_TRUE(WaitUntil("the neighbour's are held", [&] { return Devices(box_.KeeperPid()) > 0; }));
    const size_t of_one = Devices(box_.KeeperPid());
    dying_.emplace(box_.Dying(work));
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
  std::optional<Process> neighbour_, dying_;
  uint64_t before_ = 0;
  size_t of_both_ = 0;
  pid_t daemon_ = 0, keeper_ = 0;
};

// It always has work, so that its guard comes by; 40 ms of it.
TEST_F(HeldAtWork, ByTheNextKeeperAfterADeathOfTheFirst) {
  Begin("300ms", {"keeps", "20"});
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

// The keeper needs nobody to know what to do. The work takes three times as long as it takes
// the next daemon to come.
TEST_F(HeldAtWork, WithoutADaemonThatSeesTheDeath) {
  Begin("4s", {"dies", "wait", "150", "20"});
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
  Begin("4s", {"dies", "wait", "150", "20"});
  box_.Kill("dying", SIGKILL);
  ASSERT_TRUE(DeathIsTold());
  kill(daemon_, SIGKILL);
  AwaitTheNextDaemon();
  EXPECT_EQ(box_.KeeperPid(), keeper_);
  ExpectAllIsWell();
}

// The keeper has them, the daemon that sent them is no more, and their guard says nothing to the
// next one.
TEST(HeldByADaemon, ThatDiesAsTheyComeAreHeldAllTheSame) {
  MpsBox box;
  const std::string token = box.dir() + "/token";
  std::ofstream(box.ConfigFile()) << "[mps]\nhold_min = \"300ms\"\nhold_max = \"300ms\"\n";
  Touch(token);
  box.SetEnv("GPUMUX_KILL_AT", std::string("descriptors-came") + "@" + token);
  Process dying = box.Dying({"keeps", "20"});
  ASSERT_TRUE(WaitUntil("the point is passed", [&] { return access(token.c_str(), F_OK) != 0; }));
  ASSERT_TRUE(WaitUntil("the keeper has them", [&] { return Devices(box.KeeperPid()) > 0; }));
  ASSERT_TRUE(WaitUntil("the next daemon", [&] { return box.DaemonPid() != 0; }));
  const size_t of_one = Devices(box.KeeperPid());
  Process neighbour = box.Neighbour();
  ASSERT_TRUE(WaitUntil("both are held", [&] { return Devices(box.KeeperPid()) == 2 * of_one; }));
  const uint64_t before = box.UsedBytes();
  box.Kill("dying", SIGKILL);
  EXPECT_TRUE(WaitUntil("it is let go", [&] { return Devices(box.KeeperPid()) == of_one; }));
  EXPECT_TRUE(WaitUntil("its memory is free", [&] { return box.UsedBytes() < before; }));
  box.ExpectUnharmed(neighbour);
  EXPECT_THAT(box.Events("mps-fault"), IsEmpty());
  dying.Wait();
}

// The next daemon knows them by NVML alone: who lost work is told all the same, and nobody who
// only worked is accused.
TEST(NotHeld, BeforeTheNextDaemonHearsFromGuardsIsALossOfAll) {
  MpsBox box("never");
  Process neighbour = box.Neighbour();
  Process idle = box.Tenant("idle", {}, {Sandbox::TestProgram("mps_probe"), "idle", "wait"});
  ASSERT_TRUE(WaitUntil("it has its context", [&] { return idle.Out().find("busy") != std::string::npos; }));
  Process dying = box.Dying({"keeps", "20"});
  const pid_t program = box.ProgramOf("dying"), daemon = box.DaemonPid();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(
      WaitUntil("the next daemon", [&] { return box.DaemonPid() != 0 && box.DaemonPid() != daemon; }));
  // By then it has seen them, and looks after the server.
  box.ExpectANewcomerIsServed();
  kill(program, SIGKILL);
  box.ExpectHarmed(neighbour);
  EXPECT_THAT(neighbour.Err(), HasSubstr("killed by "));
  ASSERT_TRUE(WaitUntil("it is told", [&] { return !box.Events("mps-fault").empty(); }));
  EXPECT_THAT(box.Events("mps-fault"), ElementsAre(HasSubstr("the work of 3 tenant(s) is lost")));
  EXPECT_THAT(box.Events("mps-fault"), Not(Contains(AnyOf(HasSubstr("(neighbour)"), HasSubstr("(idle)")))));
  box.Kill("idle", SIGTERM);
  idle.Wait();
  EXPECT_THAT(idle.Err(), HasSubstr("killed by "));
  dying.Wait();
  box.ExpectANewcomerIsServed();
}

// Nothing else than the keeper held them: as without one, and said so.
void ExpectLostWithTheKeeper(MpsBox& box, Process& neighbour) {
  box.ExpectHarmed(neighbour);
  // Who it was is known if the keeper's death is noticed before the fault.
  EXPECT_THAT(neighbour.Err(), HasSubstr("killed by "));
  EXPECT_THAT(box.Events("mps-fault"),
              ElementsAre(AnyOf(HasSubstr("(dying) on the GPU: it died with work under way"),
                                HasSubstr("the driver does not tell whose it was"))));
  box.ExpectANewcomerIsServed();
}

TEST(HeldByAKeeper, ThatDiesAreAsIfNobodyHadHeldThem) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  Process dying = box.Dying({"dies", "wait", "100", "20"});
  box.Kill("dying", SIGKILL);
  ASSERT_TRUE(WaitUntil("the death is told", [&] { return !box.Events("died-at-work").empty(); }));
  kill(box.KeeperPid(), SIGKILL);
  ExpectLostWithTheKeeper(box, neighbour);
  // Its memory may be seen free before the keeper's end is.
  EXPECT_THAT(box.Events("let-go"),
              Contains(AnyOf(HasSubstr("for the keeper has died"), HasSubstr("before the end of the hold"))));
  dying.Wait();
}

// It dies at one point of its code.
class MpsKeeperAtPoint : public ::testing::Test {
 protected:
  void DieAt(const std::string& point) {
    std::ofstream(box_.ConfigFile()) << "[mps]\nhold_min = \"300ms\"\n";
    Touch(token_);
    box_.SetEnv("GPUMUX_KILL_AT", point + "@" + token_);
  }
  bool Passed() {
    return WaitUntil("the point is passed", [&] { return access(token_.c_str(), F_OK) != 0; });
  }
  MpsBox box_;
  const std::string token_ = box_.dir() + "/token";
};

TEST_F(MpsKeeperAtPoint, WhereItSeesTheDeathLosesTheWork) {
  DieAt("keeper-lingering");
  Process neighbour = box_.Neighbour();
  Process dying = box_.Dying({"dies", "wait", "100", "20"});
  box_.Kill("dying", SIGKILL);
  ASSERT_TRUE(Passed());
  ExpectLostWithTheKeeper(box_, neighbour);
  dying.Wait();
}

TEST_F(MpsKeeperAtPoint, WhereItLetsGoLosesNothing) {
  DieAt("keeper-letting-go");
  Process neighbour = box_.Neighbour();
  const uint64_t before = box_.UsedBytes();
  Process dying = box_.Dying({"dies", "wait", "10", "5"});
  box_.Kill("dying", SIGKILL);
  ASSERT_TRUE(Passed());
  box_.ExpectFreed(before);
  ASSERT_TRUE(WaitUntil("that is told", [&] { return !box_.Events("let-go").empty(); }));
  EXPECT_THAT(box_.Events("let-go"), ElementsAre(HasSubstr("let go, and its memory is free again")));
  // The next one has the neighbour's.
  ASSERT_TRUE(WaitUntil("the neighbour's are held", [&] { return Devices(box_.KeeperPid()) > 0; }));
  box_.ExpectUnharmed(neighbour);
  dying.Wait();
}

}  // namespace
}  // namespace gpumux::test
