// SPDX-License-Identifier: Apache-2.0
//
// The same for a while, with other inputs each time. GPUMUX_TEST_SEED repeats a
// run; an input that ends the program lies in the file that is named at its begin.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "mutation.h"
#include "targets.h"

namespace gpumux::test {
namespace {

class FuzzLong : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(FuzzLong, SurvivesWhatIsNearlyRight) {
  const char* chosen = std::getenv("GPUMUX_TEST_SEED");
  const char* seconds = std::getenv("GPUMUX_TEST_SECONDS");
  const uint64_t seed =
      chosen ? std::strtoull(chosen, nullptr, 10)
             : static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 15);
  const std::string last =
      "/tmp/gpumux-fuzz-" + std::string(GetParam().name) + "-" + std::to_string(getpid());
  std::printf("seed %" PRIu64 ", last input in %s\n", seed, last.c_str());
  std::fflush(stdout);
  Mutation mutation(seed, GetParam().seeds());
  uint64_t inputs = 0;
  for (; std::chrono::steady_clock::now() < end; ++inputs) {
    const std::string input = mutation.Next();
    std::ofstream(last, std::ios::binary) << input;
    GetParam().run(input);
  }
  ::unlink(last.c_str());
  std::printf("%" PRIu64 " inputs\n", inputs);
}

INSTANTIATE_TEST_SUITE_P(Parsers, FuzzLong, ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gpumux::test
