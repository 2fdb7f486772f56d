// SPDX-License-Identifier: Apache-2.0
//
// MPS's own processes die, hang, are not there: what its tenants go through, what
// is told, and who is served then (docs/design/mps.md, "Failure table").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "../support/installed.h"
#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// MPS's error for clients whose server is gone.
constexpr int kRpcFailure = 806;

std::vector<std::string> Idle() { return {Sandbox::TestProgram("mps_probe"), "idle", "wait"}; }

TEST(MpsServer, ThatIsKilledTakesItsTenantsAlongAndNobodyIsAccused) {
  MpsBox box;
  Process first = box.Neighbour("first"), second = box.Neighbour("second");
  const pid_t server = box.ServerPid();
  ASSERT_GT(server, 0);
  kill(server, SIGKILL);
  for (Process* each : {&first, &second}) {
    box.ExpectHarmed(*each, kRpcFailure);
    EXPECT_THAT(each->Err(), HasSubstr("its MPS server died"));
  }
  EXPECT_THAT(box.Events("mps-server-lost"), ElementsAre(HasSubstr("the work of 2 tenant(s) is lost")));
  EXPECT_THAT(box.Events("mps-fault"), IsEmpty());
  box.ExpectANewcomerIsServed();
  EXPECT_NE(box.ServerPid(), server);
}

// Who has noticed nothing yet keeps nobody waiting.
TEST(MpsServer, ThatIsKilledIsReplacedWhileItsClientsStay) {
  MpsBox box;
  Process stays = box.Tenant("stays", {}, Idle());
  ASSERT_TRUE(WaitUntil("it has its context", [&] { return stays.Out().find("busy") != std::string::npos; }));
  const pid_t server = box.ServerPid();
  kill(server, SIGKILL);
  box.ExpectANewcomerIsServed();
  EXPECT_NE(box.ServerPid(), server);
  EXPECT_FALSE(stays.Ended());
  box.Kill("stays", SIGTERM);
  stays.Wait();
  EXPECT_THAT(stays.Err(), HasSubstr("its MPS server died"));
}

TEST(MpsServer, ThatIsKilledWithTenantsThatMayStartAgainStartsThem) {
  MpsBox box;
  const std::string ready = box.dir() + "/ready";
  Process work = box.Tenant(
      "again", {"--restart", "neighbour-fault=1"},
      {Sandbox::Program("gpumux-workload"), "--kernel-us", "2000", "--seconds", "1", "--ready", ready});
  Process beside = box.Neighbour();
  ASSERT_TRUE(WaitUntil("both are at work", [&] { return access(ready.c_str(), F_OK) == 0; }));
  kill(box.ServerPid(), SIGKILL);
  box.ExpectHarmed(beside, kRpcFailure);
  const Outcome o = work.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("its MPS server died: starting again (1 of 1)"));
}

TEST(MpsControlDaemon, ThatIsKilledTakesItsTenantsAlongAndAnotherServesNewcomers) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  const pid_t control = box.ControlPid(), server = box.ServerPid();
  ASSERT_GT(control, 0);
  kill(control, SIGKILL);
  box.ExpectHarmed(neighbour, kRpcFailure);
  EXPECT_THAT(box.Events("mps-server-lost"), ElementsAre(HasSubstr("the work of 1 tenant(s) is lost")));
  box.ExpectANewcomerIsServed();
  EXPECT_NE(box.ControlPid(), control);
  EXPECT_NE(box.ServerPid(), server);
}

TEST(MpsControlProgram, ThatIsNotInstalledIsARefusalWithWhatToDo) {
  MpsBox box;
  const Installed installed(box);
  unsigned removed = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(installed.dir())) {
    if (entry.path().filename() == "nvidia-cuda-mps-control") removed += remove(entry.path().c_str()) == 0;
  }
  ASSERT_GT(removed, 0u);
  const std::string gpumux = installed.Path("bin/gpumux");
  const Outcome refused =
      box.Run({gpumux, "run", "--mode", "mps", "--mem", "1GiB", "--", "/bin/echo", "ran"});
  EXPECT_EQ(refused.exit_code, 7) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("nvidia-cuda-mps-control is not installed"));
  EXPECT_THAT(refused.err, HasSubstr("install "));
  EXPECT_EQ(refused.out, "");
  // Its promise is gone with it, and other modes need none of MPS.
  const Outcome other = box.Run({gpumux, "run", "--mem", "130GiB", "--no-wait", "--", "/bin/echo", "ran"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
}

TEST(MpsPipes, WhosePathWouldBeTooLongAreARefusal) {
  MpsBox box;
  const std::string dir = box.runtime_dir() + "/" + std::string(60 - box.runtime_dir().size(), 'x');
  std::filesystem::create_directories(dir);
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all);
  box.SetEnv("GPUMUX_RUNTIME_DIR", dir);
  const Outcome refused = box.RunGpumux({"run", "--mode", "mps", "--mem", "1GiB", "--", "/bin/echo", "ran"});
  EXPECT_EQ(refused.exit_code, 7) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("the path of MPS's sockets would be too long: " + dir));
  EXPECT_THAT(refused.err, HasSubstr("GPUMUX_RUNTIME_DIR"));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "130GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
}

// Looked at all the time while it starts: at no moment is it somebody else's.
TEST(Servers, AreNobodysStrangers) {
  MpsBox box;
  Process tenant = box.Tenant("tenant", {}, {Sandbox::Program("gpumux-workload"), "--hold", "60"});
  ASSERT_TRUE(WaitUntil("it has its context", [&] {
    const auto status = box.StatusData();
    EXPECT_EQ(status["gpus"][0]["unmanaged_pids"].dump(), "[]");
    return status["tenants"].size() == 1 && !status["tenants"][0]["members"].empty();
  }));
  EXPECT_THAT(box.Events("stranger-seen"), IsEmpty());
  tenant.Signal(SIGTERM);
  tenant.Wait();
}

}  // namespace
}  // namespace gpumux::test
