// SPDX-License-Identifier: Apache-2.0
//
// What can go wrong at the gate, a row of the table in docs/design/gate.md each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scene.h"

namespace gpumux::test {
namespace {

TEST(Gate, OpensWhenItsOwnerIsKilled) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  box.Kill(owner, SIGKILL);
  EXPECT_TRUE(GoesOn(held));
  EXPECT_EQ(box.Gate(held)["dead_owners"], 1);
  ExpectEnds(held);
}

// Nor does anybody tell the gated process then: not even the daemon's next one.

TEST(Gate, WorksWithoutTheDaemon) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  kill(box.DaemonPid(), SIGSTOP);
  kill(box.KeeperPid(), SIGSTOP);
  GoesOn(owner);
  owner.Stop();
  EXPECT_TRUE(GoesOn(held));
  kill(box.KeeperPid(), SIGCONT);
  kill(box.DaemonPid(), SIGCONT);
  ExpectEnds(owner);
  ExpectEnds(held);
}

TEST(Gate, AKilledGatedProcessIsGone) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  box.Kill(held, SIGKILL);
  EXPECT_EQ(held.run.Wait().exit_code, 128 + SIGKILL);
  EXPECT_TRUE(WaitUntil("its memory is free again", [&] { return box.StatusData()["tenants"].size() == 1; }));
  ExpectEnds(owner);
}

TEST(Gate, AStoppedGatedProcessGoesOnWhereItWas) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  box.Kill(held, SIGSTOP);
  ExpectEnds(owner);
  GateTenant next = box.Latency();
  box.Kill(held, SIGCONT);
  EXPECT_TRUE(IsHeld(held));
  ExpectEnds(next);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

TEST(Gate, AStoppedOwnerLeavesTheMinimum) {
  GateBox box("1s", 5);
  GateTenant held = box.BestEffort(), owner = box.Latency();
  EXPECT_TRUE(GoesOn(owner));
  box.Kill(owner, SIGSTOP);
  // In each second again.
  EXPECT_TRUE(GoesOn(held, 20));
  EXPECT_TRUE(WaitUntil("the next second", [&] { return box.Gate(held)["forced_open"] >= 2; }));
  EXPECT_GT(box.Gate(held)["closed_seconds"], 0.5);
  box.Kill(owner, SIGCONT);
  ExpectEnds(owner);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

TEST(Gate, IsNotClosedForLongerThanTheLongest) {
  GateBox box("200ms", 0);
  GateTenant held = box.BestEffort(), owner = box.Latency();
  EXPECT_TRUE(GoesOn(held, 20));
  EXPECT_GE(box.Gate(held)["forced_open"], 2);
  ExpectEnds(owner);
  ExpectEnds(held);
}

// Each needs what the other does.

TEST(Gate, AnOwnerThatWaitsForAGatedProcessGetsThere) {
  GateBox box("1s", 5);
  GateTenant held = box.BestEffort();
  GateTenant owner = box.Start("latency", "needs", /*waits=*/false, held.path);
  EXPECT_EQ(owner.run.Wait().exit_code, 0) << owner.run.Out();
  ExpectEnds(held);
}

TEST(Gate, OpensWithoutAnOwnerThatWaits) {
  for (const char* const role : {"polls", "never-waits"}) {
    GateBox box;
    GateTenant held = box.BestEffort(), owner = box.Latency(role);
    EXPECT_TRUE(GoesOn(owner, 20)) << role;
    EXPECT_TRUE(GoesOn(held)) << role;
    EXPECT_TRUE(WaitUntil("it was busy often", [&] { return box.Gate(owner)["busy_periods"] >= 10u; }))
        << role;
    ExpectEnds(owner);
    ExpectEnds(held);
  }
}

TEST(Gate, AnOwnerWithoutItsDescriptorsFetchesThemAnew) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency("closes-files");
  EXPECT_TRUE(IsHeld(held));
  ExpectEnds(owner);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

TEST(Gate, AGatedProcessThatWaitsInTheDriverGoesOn) {
  GateBox box;
  GateTenant frees = box.BestEffort("frees", /*waits=*/true), held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  frees.Go();
  EXPECT_TRUE(IsHeld(held));
  EXPECT_EQ(frees.state->ready, kReady) << "its memory is in use by what is held back";
  ExpectEnds(owner);
  EXPECT_TRUE(WaitUntil("its memory is freed", [&] { return frees.state->ready == kDid; }));
  ExpectEnds(frees);
  ExpectEnds(held);
}

TEST(Gate, OfAForkedChildIsItsOwn) {
  GateBox box;
  GateTenant held = box.BestEffort("forks"), owner = box.Latency();
  EXPECT_TRUE(IsHeld(held));
  ExpectEnds(owner);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

// Either is enough to hold it back, and neither opens it for the other.

// The next one finds owners with their bits and gates with their owners.
TEST(Gate, StaysClosedFromOneDaemonToTheNext) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  const pid_t first = box.DaemonPid();
  kill(first, SIGKILL);
  EXPECT_TRUE(IsHeld(held));
  EXPECT_TRUE(WaitUntil("the next one has both", [&] {
    return box.Gate(held).is_object() && box.Gate(owner).is_object() && box.DaemonPid() != first;
  }));
  EXPECT_TRUE(IsHeld(held));
  box.Kill(owner, SIGKILL);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

}  // namespace
}  // namespace gpumux::test
