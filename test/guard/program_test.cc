// SPDX-License-Identifier: Apache-2.0
//
// The functions that the guard has for programs that know of gpumux, from C.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../support/sandbox.h"
#include "gpumux/gpumux.h"  // also as C++

namespace gpumux::test {
namespace {

// Executables in which a weak symbol works, and in which it would not.
class ProgramApi : public ::testing::TestWithParam<const char*> {
 protected:
  std::string probe = Sandbox::TestProgram(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Kinds, ProgramApi, ::testing::Values("program_probe", "program_probe_fixed"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ProgramApi, AnswersInATenant) {
  Sandbox box;
  const Outcome o = box.RunGpumux({"run", "--mem", "2GiB:8GiB", "--", probe});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  std::string sorted = o.out;
  // The thread that stops and the one that is stopped print in either order.
  if (const size_t at = sorted.find("stopped 6\nstop 0\n"); at != std::string::npos)
    sorted.replace(at, 17, "stop 0\nstopped 6\n");
  EXPECT_EQ(sorted,
            "memory 0 8589934592 2147483648\n"
            "short 2\n"
            "null 2\n"
            "device 1 3\n"
            "fraction 0 2\n"
            "half 0 4294967296\n"
            "wait 5\n"
            "stop 0\n"
            "stopped 6\n"
            "again 5\n"
            "done 0\n"
            "latency 8 8\n"
            "errno 77\n"
            "text 1\n");
}

TEST_P(ProgramApi, OutsideOfATenantEveryCallSaysSo) {
  Sandbox box;
  const Outcome o = box.Run({probe});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out,
            "memory 1 0 0\nshort 1\nnull 1\ndevice 1 1\nfraction 1 1\nhalf 1 0\nwait 1\nstopped 1\nstop "
            "1\nagain 1\ndone 1\n"
            "latency 1 1\nerrno 77\ntext 1\n");
}

TEST(ProgramApi, OneThreadWaitsAtATime) {
  Sandbox box;
  const Outcome o =
      box.RunGpumux({"run", "--mem", "1GiB", "--", Sandbox::TestProgram("program_probe"), "one-place"});
  EXPECT_EQ(o.out, "second 7\nstop 0\nfirst 6\n") << o.err;
}

}  // namespace
}  // namespace gpumux::test
