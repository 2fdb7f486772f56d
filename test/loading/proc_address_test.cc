// SPDX-License-Identifier: Apache-2.0
//
// cuGetProcAddress under the guard: every name, version and stream flavour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t Number(const std::string& text, const std::string& word) {
  const size_t at = text.rfind(word + " ");
  return at == std::string::npos ? 0 : std::stoul(text.substr(at + word.size() + 1));
}

Outcome Ask(const std::string& faults) {
  Sandbox box;
  if (!faults.empty()) box.SetEnv("GPUMUX_SOFTGPU_FAULTS", faults);
  return box.RunGpumux({"run", "--mem", "1GiB", "--quiet", "--", Sandbox::TestProgram("proc_address_probe")});
}

TEST(ProcAddress, GivesTheWrapperOfTheDriversOwnAnswerOrTheAnswerItself) {
  const Outcome o = Ask("");
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(Number(o.out, "different"), 0u) << o.out;
  EXPECT_THAT(o.out, Not(HasSubstr("never met"))) << "a hook that no look-up leads to";
  EXPECT_GT(Number(o.out, "asked"), 100'000u);
  EXPECT_GT(Number(o.out, "others"), 500u);
}

TEST(ProcAddress, FollowsAnOlderDriverToo) {
  const Outcome o = Ask("driver 520.61.05 cuda 11.8");
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(Number(o.out, "different"), 0u) << o.out;
  // What came after CUDA 11.8 is not there, and the guard has nothing in its place.
  EXPECT_THAT(o.out, HasSubstr("never met: cuCtxCreate_v4"));
  EXPECT_THAT(o.out, Not(HasSubstr("never met: cuCtxCreate_v3")));
  EXPECT_GT(Number(o.out, "hooked"), 60u);
}

TEST(ProcAddress, LeavesOutWhatTheDriverLacks) {
  const Outcome o = Ask("lack cuMemAllocAsync; lack cuMemAllocAsync_ptsz; lack cuCtxCreate_v4");
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(Number(o.out, "different"), 0u) << o.out;
  EXPECT_THAT(o.out, HasSubstr("never met: cuMemAllocAsync\n"));
  EXPECT_THAT(o.out, HasSubstr("never met: cuMemAllocAsync_ptsz\n"));
  EXPECT_THAT(o.out, HasSubstr("never met: cuCtxCreate_v4\n"));
}

}  // namespace
}  // namespace gpumux::test
