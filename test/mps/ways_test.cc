// SPDX-License-Identifier: Apache-2.0
//
// Each way of dying with kernels on the GPU; each is waited for until its
// descriptors are let go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

struct Ending {
  const char* name;
  const char* how;
  int signal;  // to a program that waits for one
};
void PrintTo(const Ending& ending, std::ostream* out) { *out << ending.name; }

class DeathAtWork : public ::testing::TestWithParam<Ending> {};

TEST_P(DeathAtWork, ReachesNobody) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  const uint64_t before = box.UsedBytes();
  Process dying = box.Dying({"dies", GetParam().how, "10", "20"});
  if (GetParam().signal != 0) box.Kill("dying", GetParam().signal);
  ASSERT_TRUE(WaitUntil("the death is told", [&] { return !box.Events("died-at-work").empty(); }));
  EXPECT_THAT(box.Events("died-at-work")[0], HasSubstr(" descriptors held for "));
  box.ExpectFreed(before);
  ASSERT_TRUE(WaitUntil("that is told", [&] { return !box.Events("let-go").empty(); }));
  EXPECT_THAT(box.Events("let-go"), SizeIs(1));
  box.ExpectUnharmed(neighbour);
  dying.Wait();
}

INSTANTIATE_TEST_SUITE_P(Ways, DeathAtWork,
                         ::testing::Values(Ending{"SIGKILL", "wait", SIGKILL},
                                           Ending{"SIGTERM", "wait", SIGTERM},
                                           Ending{"SIGINT", "wait", SIGINT}, Ending{"SIGSEGV", "segv", 0},
                                           Ending{"abort", "abort", 0}, Ending{"_exit", "_exit", 0},
                                           Ending{"return", "return", 0}),
                         [](const auto& info) { return std::string(info.param.name); });

// The process goes on, the program that had the GPU is gone, which the daemon sees within a
// second; the work takes three.
TEST(Deaths, ByExecutingAnotherProgramReachNobody) {
  MpsBox box;
  std::ofstream(box.ConfigFile()) << "[mps]\nhold_max = \"4s\"\n";
  Process neighbour = box.Neighbour();
  ASSERT_TRUE(WaitUntil("the neighbour's are held", [&] { return Devices(box.KeeperPid()) > 0; }));
  const uint64_t before = box.UsedBytes();
  const size_t of_neighbour = Devices(box.KeeperPid());
  Process dying = box.Dying({"dies", "exec", "150", "20", "/bin/sleep", "1000"});
  box.ExpectFreed(before);
  EXPECT_TRUE(
      WaitUntil("only the neighbour's are held", [&] { return Devices(box.KeeperPid()) == of_neighbour; }));
  EXPECT_FALSE(dying.Ended());
  box.ExpectUnharmed(neighbour);
  box.Kill("dying", SIGKILL);
  dying.Wait();
}

}  // namespace
}  // namespace gpumux::test
