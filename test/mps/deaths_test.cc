// SPDX-License-Identifier: Apache-2.0
//
// Clients of MPS that die with kernels on the GPU, and what their neighbour
// notices (docs/design/mps.md, "Deaths").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::AnyOf;
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
  // Who it was is known if its end is told before the fault is judged; nobody else is named.
  EXPECT_THAT(box.Events("mps-fault"),
              ElementsAre(AnyOf(HasSubstr("(dying) on the GPU: it died with work under way"),
                                HasSubstr("the driver does not tell whose it was"))));
}

// Whoever is stopped does not even need the hold: the server ends its work first, of which
// there is more than is waited for.
TEST(Deaths, ByStopReachNobody) {
  MpsBox box("never");
  Process neighbour = box.Neighbour();
  Process dying = box.Dying({"dies", "wait", "300", "20"});
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

// How much of its work was waited for cannot be seen of a program that waits for events.
TEST(Deaths, OfWhoGaveItsContextBackAreNotAtWork) {
  MpsBox box;
  box.ExpectANewcomerIsServed();
  EXPECT_THAT(box.Events("died-at-work"), IsEmpty());
}

TEST(Deaths, ByExecutingAProgramThatUsesTheGpuReachNobodyEither) {
  MpsBox box;
  std::ofstream(box.ConfigFile()) << "[mps]\nhold_min = \"300ms\"\n";
  Process neighbour = box.Neighbour();
  Process dying = box.Dying(
      {"dies", "exec", "10", "5", Sandbox::TestProgram("mps_probe"), "neighbour", box.dir() + "/stop"});
  ASSERT_TRUE(
      WaitUntil("the next program works", [&] { return dying.Out().find("works") != std::string::npos; }));
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 8ull << 30);
  box.ExpectUnharmed(neighbour);
  const Outcome o = dying.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
}

}  // namespace
}  // namespace gpumux::test
