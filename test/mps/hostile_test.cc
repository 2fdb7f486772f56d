// SPDX-License-Identifier: Apache-2.0
//
// A tenant of mode mps whose guard is none, and what it sends to be held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <sstream>

#include "scene.h"

namespace gpumux::test {
namespace {

TEST(HostileGuard, HasNothingHeldThatIsNoDeviceAndHarmsNobody) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  ASSERT_TRUE(WaitUntil("the neighbour's are held", [&] { return Devices(box.KeeperPid()) > 0; }));
  const pid_t daemon = box.DaemonPid(), keeper = box.KeeperPid();
  const size_t of_neighbour = Devices(keeper);
  Process hostile = box.Tenant(
      "hostile", {},
      {Sandbox::TestProgram("mps_hostile_guard"), box.runtime_dir() + "/sim/session.sock", box.dir()});
  ASSERT_TRUE(WaitUntil("it has sent everything",
                        [&] { return hostile.Ended() || hostile.Out().find("sound") != std::string::npos; }))
      << hostile.Out() << hostile.Err();
  EXPECT_EQ(hostile.Out(),
            "a device: taken\n"
            "a whole round in order: taken\n"
            "none: taken\n"
            "/dev/null: hung up\n"
            "a pipe: hung up\n"
            "a socket whose other end is closed: hung up\n"
            "a file with a device's name: hung up\n"
            "memory with a device's name: hung up\n"
            "a pipe behind devices: hung up\n"
            "more than a message may have: hung up\n"
            "more than are counted: hung up\n"
            "fewer than the first: hung up\n"
            "a count and no descriptor: hung up\n"
            "a count above all: hung up\n"
            "a count that wraps: hung up\n"
            "a part without a first: hung up\n"
            "a part of another round: hung up\n"
            "a part twice: hung up\n"
            "sound\n");
  // Of all its rounds the last; nothing of anybody's in the daemon.
  EXPECT_TRUE(WaitUntil("the rest is let go", [&] { return Devices(keeper) == of_neighbour + 64; }))
      << Devices(keeper) << ", and " << of_neighbour << " of the neighbour";
  EXPECT_EQ(Devices(daemon), 0u);
  box.Kill("hostile", SIGKILL);
  EXPECT_TRUE(WaitUntil("its last are let go", [&] { return Devices(keeper) == of_neighbour; }));
  hostile.Wait();
  EXPECT_EQ(box.DaemonPid(), daemon);
  EXPECT_EQ(box.KeeperPid(), keeper);
  box.ExpectANewcomerIsServed();
  box.ExpectUnharmed(neighbour);
}

}  // namespace
}  // namespace gpumux::test
