// SPDX-License-Identifier: Apache-2.0
//
// The control daemon hangs: noticed, repaired, and nobody who works loses anything
// (docs/design/mps.md, "Failure table").
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "scene.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> ShortJob() { return {Sandbox::TestProgram("mps_probe"), "idle", "return"}; }

TEST(ControlDaemonThatHangs, BecauseItWasStoppedGoesOn) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  const pid_t control = box.ControlPid(), server = box.ServerPid();
  kill(control, SIGSTOP);
  // Its program waits for the control daemon, which nobody else has asked yet.
  Process newcomer = box.Tenant("newcomer", {"--strict"}, ShortJob());
  const Outcome o = newcomer.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  EXPECT_EQ(box.ControlPid(), control);
  EXPECT_EQ(box.ServerPid(), server);
  box.ExpectUnharmed(neighbour);
  EXPECT_THAT(box.Events("mps-server-lost"), IsEmpty());
}

// As one that waits in the kernel: no signal but SIGKILL helps.
TEST(ControlDaemonThatHangs, ForGoodIsReplacedWhenItsTenantsHaveEnded) {
  MpsBox box;
  Process neighbour = box.Neighbour();
  const pid_t control = box.ControlPid();
  if (ptrace(PTRACE_SEIZE, control, nullptr, nullptr) != 0)
    GTEST_SKIP() << "cannot trace: " << strerror(errno);
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, control, nullptr, nullptr), 0);
  ASSERT_EQ(waitpid(control, nullptr, __WALL), control);
  ASSERT_TRUE(WaitUntil(
      "it is noticed",
      [&] {
        const Outcome refused = box.Tenant("refused", {"--no-wait"}, {"/bin/true"}).Wait();
        if (refused.exit_code == 0) return false;
        EXPECT_EQ(refused.exit_code, 4);
        EXPECT_THAT(refused.err, HasSubstr("its MPS control daemon (pid " + std::to_string(control) +
                                           ") does not answer"));
        return true;
      },
      std::chrono::seconds(30)));
  Process waits = box.Tenant("waits", {"--strict"}, ShortJob());
  // Whoever works is not ended for it.
  box.ExpectUnharmed(neighbour);
  const Outcome o = waits.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  EXPECT_NE(box.ControlPid(), control);
  waitpid(control, nullptr, __WALL | WNOHANG);
}

}  // namespace
}  // namespace gpumux::test
