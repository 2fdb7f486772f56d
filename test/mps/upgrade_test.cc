// SPDX-License-Identifier: Apache-2.0
//
// All files are replaced while tenants run under MPS, and the next daemon looks
// after the domain that it finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "../support/installed.h"
#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::IsEmpty;

TEST(UpgradeUnderMps, LeavesTenantsAndServerAlone) {
  // Nobody's descriptors are held: who is killed at work would harm the neighbour.
  MpsBox box("never");
  std::ofstream(box.ConfigFile()) << "[mps]\nidle_time = \"0s\"\n";
  const Installed build(box);
  box.UseProgram(build.Path("bin/gpumux"));
  Process neighbour = box.Neighbour(), stopped = box.Dying({"keeps", "20"});
  const pid_t control = box.ControlPid(), server = box.ServerPid(), daemon = box.DaemonPid();
  for (const char* name : {"bin/gpumuxd", "bin/gpumux", "lib/gpumux/libgpumux-guard.so"}) build.Replace(name);
  kill(daemon, SIGTERM);
  ASSERT_TRUE(WaitUntil("a daemon of the new file", [&] { return build.Runs("bin/gpumuxd"); }));
  ASSERT_TRUE(WaitUntil("it has both tenants", [&] {
    const auto status = box.StatusData();
    return status["tenants"].size() == 2 && status["gpus"][0]["mode"] == "mps";
  }));
  // They are clients of the same server as ever, and a new one is too.
  box.ExpectANewcomerIsServed();
  EXPECT_EQ(box.ControlPid(), control);
  EXPECT_EQ(box.ServerPid(), server);
  EXPECT_TRUE(box.StatusData()["gpus"][0]["strangers"].empty()) << box.StatusData()["gpus"][0];
  // The daemon of now has the server end the work of whom it stops.
  EXPECT_EQ(box.RunGpumux({"stop", "--grace", "0s", "--signal", "CONT", "dying"}).exit_code, 0);
  stopped.Wait();
  box.ExpectUnharmed(neighbour);
  EXPECT_THAT(box.Events("mps-server-lost"), IsEmpty());
  EXPECT_THAT(box.Events("mps-fault"), IsEmpty());
  EXPECT_TRUE(
      WaitUntil("the domain has ended", [&] { return box.ServerPid() == 0 && box.ControlPid() == 0; }));
}

}  // namespace
}  // namespace gpumux::test
