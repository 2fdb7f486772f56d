// SPDX-License-Identifier: Apache-2.0
//
// What the gate does, and the worst of what can go wrong with it (docs/design/gate.md); the
// rest is in stuck_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scene.h"

namespace gpumux::test {
namespace {

TEST(Gate, HoldsBackWhileALatencyCriticalOneWorks) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency("busy", /*waits=*/true);
  EXPECT_TRUE(GoesOn(held));
  owner.Go();
  EXPECT_TRUE(IsHeld(held));
  EXPECT_TRUE(GoesOn(owner));
  ExpectEnds(owner);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

TEST(Gate, OpensWhenItsOwnerIsKilledAndTheDaemonHangs) {
  GateBox box;
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  const pid_t program = box.ProgramOf(owner);
  kill(box.DaemonPid(), SIGSTOP);
  kill(program, SIGKILL);
  EXPECT_TRUE(GoesOn(held));
  kill(box.DaemonPid(), SIGCONT);
  ExpectEnds(held);
}

TEST(Gate, ProcessesThatEndWithWorkQueuedEnd) {
  for (const char* const role : {"returns", "exits"}) {
    GateBox box;
    GateTenant ending = box.BestEffort(role, /*waits=*/true), held = box.BestEffort(), owner = box.Latency();
    ASSERT_TRUE(IsHeld(held));
    ending.Go();
    const Outcome o = ending.run.Wait();
    EXPECT_EQ(o.exit_code, 0) << role << ": " << o.out << o.err;
    EXPECT_TRUE(IsHeld(held)) << "another's gate";
    ExpectEnds(owner);
    ExpectEnds(held);
  }
}

TEST(Gate, IsOnTheCpuWhereTheDriverRefusesWaits) {
  GateBox box;
  box.SetEnv("GPUMUX_SOFTGPU_FAULTS",
             "fail cuStreamWaitValue64* with CUDA_ERROR_NOT_SUPPORTED; "
             "fail cuStreamBatchMemOp* with CUDA_ERROR_NOT_SUPPORTED");
  GateTenant held = box.BestEffort(), owner = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  EXPECT_EQ(box.Gate(held)["held_by"], "cpu");
  ExpectEnds(owner);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

// Measuring kernels asks for events, which ends a capture that is under way in any thread.
TEST(Gate, AMeasurementEndsNoCaptureOfAnotherThread) {
  GateBox box;
  GateTenant owner = box.Latency("polls"), held = box.BestEffort("captures");
  EXPECT_TRUE(GoesOn(held, 100));
  EXPECT_GT(box.Gate(held)["waits"], 0);
  ExpectEnds(held);
  ExpectEnds(owner);
}

// A launch that takes 200 ms stops in its midst, its order is kept, and it is as its program wants it to be.
TEST(Gate, HoldsALongGraphBackInItsMidst) {
  constexpr uint64_t kSteps = 40;
  GateBox box;
  // The second one does nothing: because of it there is a gate until the end.
  GateTenant owner = box.Latency("busy", /*waits=*/true), idle = box.Latency("busy", /*waits=*/true),
             held = box.BestEffort("graphs");
  // Its time is learnt from the first launches.
  EXPECT_TRUE(GoesOn(held, 6 * kSteps));
  EXPECT_TRUE(
      WaitUntil("it is at the beginning of a launch", [&] { return held.state->done % kSteps == 3; }));
  owner.Go();
  EXPECT_TRUE(IsHeld(held));
  EXPECT_GT(held.state->done % kSteps, 2u);
  EXPECT_LT(held.state->done % kSteps, 20u);
  ExpectEnds(owner);
  EXPECT_TRUE(GoesOn(held, 2 * kSteps));
  held.state->command = kChange;
  EXPECT_TRUE(WaitUntil("it ran as it was changed", [&] { return held.state->ready == kDid; }));
  EXPECT_TRUE(GoesOn(held, kSteps));
  ExpectEnds(held);
  ExpectEnds(idle);
}

// With nobody who could close its gate the program's own graph is launched, and the copy again when there is.
TEST(Gate, ALongGraphAndItsCopyNeverRunAtOnce) {
  constexpr uint64_t kSteps = 40;
  GateBox box;
  GateTenant held = box.BestEffort("graphs");
  EXPECT_TRUE(GoesOn(held, 2 * kSteps));
  for (int round = 0; round < 3; ++round) {
    GateTenant idle = box.Latency("busy", /*waits=*/true);
    EXPECT_TRUE(GoesOn(held, 4 * kSteps));
    ExpectEnds(idle);
    EXPECT_TRUE(GoesOn(held, kSteps));
  }
  ExpectEnds(held);
}

TEST(Gate, TwoOwnersHoldItTogether) {
  GateBox box;
  GateTenant held = box.BestEffort(), one = box.Latency(), other = box.Latency();
  ASSERT_TRUE(IsHeld(held));
  ExpectEnds(one);
  EXPECT_TRUE(IsHeld(held));
  box.Kill(other, SIGKILL);
  EXPECT_TRUE(GoesOn(held));
  ExpectEnds(held);
}

}  // namespace
}  // namespace gpumux::test
