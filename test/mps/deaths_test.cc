// SPDX-License-Identifier: Apache-2.0
//
// Clients of MPS that die with kernels on the GPU, and what their neighbour
// notices (docs/design/mps.md, "Deaths").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Deaths, AtWorkReachNobody) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  Process dying = box.Dying({"dies", "wait", "10", "20"});
  box.Kill("dying", SIGKILL);
  ASSERT_TRUE(WaitUntil("the death is told", [&] { return !box.Events("died-at-work").empty(); }));
  ASSERT_TRUE(WaitUntil("its descriptors are let go", [&] { return !box.Events("let-go").empty(); }));
  box.ExpectUnharmed(neighbour);
}

TEST(Deaths, WithoutTheHoldReachTheNeighbour) {
  MpsBox box("never");
  Process neighbour = box.Neighbour();
  Process dying = box.Dying({"dies", "wait", "10", "20"});
  box.Kill("dying", SIGKILL);
  box.ExpectHarmed(neighbour);
  dying.Wait();
  EXPECT_THAT(box.Events("mps-fault"),
              ElementsAre(HasSubstr("(dying) on the GPU: it died with work under way")));
}

// Whoever is stopped does not even need the hold: the server ends its work first.
TEST(Deaths, ByStopReachNobody) {
  MpsBox box("never");
  Process neighbour = box.Neighbour();
  Process dying = box.Dying({"dies", "wait", "10", "20"});
  EXPECT_EQ(box.RunGpumux({"stop", "--grace", "0s", "--signal", "CONT", "dying"}).exit_code, 0);
  dying.Wait();
  box.ExpectUnharmed(neighbour);
}

TEST(Deaths, WithoutWorkHoldNothingUpForLong) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  const uint64_t before = box.UsedBytes();
  Process dying = box.Dying({"idle", "return"});
  box.ExpectFreed(before);
  dying.Wait();
  EXPECT_THAT(box.Events("died-at-work"), IsEmpty());
  box.ExpectUnharmed(neighbour);
}

}  // namespace
}  // namespace gpumux::test
