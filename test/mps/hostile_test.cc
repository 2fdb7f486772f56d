// SPDX-License-Identifier: Apache-2.0
//
// A tenant of mode mps whose guard is none, and what it sends to be held.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>

#include "scene.h"

namespace gpumux::test {
namespace {

// The keeper's, of devices that the software GPU has: the neighbour's. The hostile
// guard's lie elsewhere.
size_t OfNeighbour(pid_t keeper) {
  // A new round comes and the one before goes while the directory is read: the most counts.
  size_t most = 0;
  for (int i = 0; i < 3; ++i) most = std::max(most, Devices(keeper) - Devices(keeper, "/fifo/dev/nvidia"));
  return most;
}

constexpr char kOutcomes[] =
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
    "sound\n";

void RunHostile(bool keeper_stands_still) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  ASSERT_TRUE(WaitUntil("the neighbour's are held", [&] { return Devices(box.KeeperPid()) > 0; }));
  const pid_t daemon = box.DaemonPid(), keeper = box.KeeperPid();
  const size_t of_neighbour = Devices(keeper);
  if (keeper_stands_still) kill(keeper, SIGSTOP);
  Process hostile = box.Tenant(
      "hostile", {},
      {Sandbox::TestProgram("mps_hostile_guard"), box.runtime_dir() + "/sim/session.sock", box.dir()});
  size_t least = of_neighbour;
  const auto ended = [&] {
    least = std::min(least, OfNeighbour(keeper));
    return hostile.Ended() || hostile.Out().find("sound") != std::string::npos;
  };
  ASSERT_TRUE(WaitUntil("it has sent everything", ended)) << hostile.Out() << hostile.Err();
  EXPECT_EQ(hostile.Out(), kOutcomes);
  if (keeper_stands_still) kill(keeper, SIGCONT);
  // Of all its rounds the last; nothing of anybody's in the daemon.
  const auto settled = [&] {
    least = std::min(least, OfNeighbour(keeper));
    return Devices(keeper) == of_neighbour + 64;
  };
  EXPECT_TRUE(WaitUntil("the rest is let go", settled))
      << Devices(keeper) << ", and " << of_neighbour << " of the neighbour";
  EXPECT_EQ(least, of_neighbour) << "the neighbour's, throughout";
  EXPECT_EQ(Devices(daemon), 0u);
  box.Kill("hostile", SIGKILL);
  EXPECT_TRUE(WaitUntil("its last are let go", [&] { return Devices(keeper) == of_neighbour; }));
  hostile.Wait();
  EXPECT_EQ(box.DaemonPid(), daemon);
  EXPECT_EQ(box.KeeperPid(), keeper);
  box.ExpectANewcomerIsServed();
  box.ExpectUnharmed(neighbour);
}

TEST(HostileGuard, HasNothingHeldThatIsNoDeviceAndHarmsNobody) { RunHostile(/*keeper_stands_still=*/false); }

// Then the daemon gives the keeper up and finds it again.
TEST(HostileGuard, WhoFillsTheKeepersQueueHarmsNobody) { RunHostile(/*keeper_stands_still=*/true); }

}  // namespace
}  // namespace gpumux::test
