// SPDX-License-Identifier: Apache-2.0
#include "daemon/process_tree.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gpumux::daemon {
namespace {

TEST(MayMap, SaysNoOnlyWhereItIsSure) {
  EXPECT_TRUE(MayMap(::getpid(), "libc.so"));
  EXPECT_FALSE(MayMap(::getpid(), "/no-such-library.so"));
  EXPECT_FALSE(MayHaveProcessPage(::getpid()));
  // A process that has ended has no memory any more, and is still there.
  const pid_t ended = ::fork();
  if (ended == 0) ::_exit(0);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(ended), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(MayMap(ended, "/no-such-library.so"));
  EXPECT_EQ(::waitpid(ended, nullptr, 0), ended);
  EXPECT_TRUE(MayMap(ended, "/no-such-library.so"));
}

}  // namespace
}  // namespace gpumux::daemon
