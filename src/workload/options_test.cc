// SPDX-License-Identifier: Apache-2.0
#include "workload/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpumux::workload {
namespace {

using ::testing::HasSubstr;

Result<CommandLine> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "gpumux-workload");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(WorkloadOptions, AreTakenAsGiven) {
  const auto line = Parse({"--kernel-us", "200", "--rate=100.5", "--kernels", "4", "--alloc", "10GiB",
                           "--alloc-api", "vmm", "--end", "kill", "--name", "x", "--json", "--hold", "0.5"});
  ASSERT_TRUE(line) << line.error().message;
  const Options& o = line->options;
  EXPECT_EQ(o.kernel_us, 200u);
  EXPECT_DOUBLE_EQ(*o.rate, 100.5);
  EXPECT_EQ(o.kernels, 4u);
  EXPECT_EQ(o.alloc->bytes, 10 * kGiB);
  EXPECT_EQ(o.alloc_api, AllocApi::kVmm);
  EXPECT_EQ(o.end, Ending::kKill);
  EXPECT_TRUE(o.load && o.json);
  EXPECT_DOUBLE_EQ(o.hold_seconds, 0.5);
  EXPECT_FALSE(Parse({"--alloc", "1G"})->options.load);
}

struct Bad {
  std::vector<const char*> arguments;
  const char* says;
};
class WorkloadRefuses : public ::testing::TestWithParam<Bad> {};
TEST_P(WorkloadRefuses, Value) {
  const auto line = Parse(GetParam().arguments);
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code, Code::kInvalid);
  EXPECT_THAT(line.error().ToString(), HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(
    Values, WorkloadRefuses,
    ::testing::Values(Bad{{"--kernel-us", "0"}, "--kernel-us '0': out of range"},
                      Bad{{"--kernel-us=-1"}, "--kernel-us '-1'"}, Bad{{"--kernel-us", ""}, "--kernel-us"},
                      Bad{{"--kernel-us", "99999999999999999999"}, "out of range"},
                      Bad{{"--kernel-us", "5us"}, "not a number"},
                      Bad{{"--rate", "nan"}, "--rate 'nan': out of range"},
                      Bad{{"--rate", "inf"}, "out of range"}, Bad{{"--rate", "0"}, "out of range"},
                      Bad{{"--threads", "2048"}, "from 1 to 1024"}, Bad{{"--alloc", "10"}, "no unit"},
                      Bad{{"--alloc", "-1G"}, "negative"}, Bad{{"--alloc-api", "plain"}, "needs --alloc"},
                      Bad{{"--alloc", "1G", "--alloc-api", "wrong"}, "one of: plain, pitch"},
                      Bad{{"--like", "torch"}, "tensorflow, jax, pytorch"}, Bad{{"--end", "crash"}, "segv"},
                      Bad{{"--rate", "5", "--gap-us", "5"}, "no meaning"}, Bad{{"--unknown"}, "--unknown"},
                      Bad{{"--hold"}, "--hold"}));

TEST(WorkloadOptions, HelpNamesEveryWordOfItsLists) {
  const auto line = Parse({"--help"});
  ASSERT_TRUE(line);
  for (const char* word : {"plain|pitch|async|pool|vmm|managed|array|graph|ipc|local|heap|module",
                           "return|exit|segv|kill|fault|hang", "tensorflow|jax|pytorch", "Exit status"}) {
    EXPECT_THAT(line->help, HasSubstr(word));
  }
}

}  // namespace
}  // namespace gpumux::workload
