// SPDX-License-Identifier: Apache-2.0
//
// Each parser of bytes from elsewhere against inputs that are nearly right; the
// same inputs in every run. What was found once is in corpus/ and tried first.
// Also built as targets of libFuzzer (cmake --preset fuzz).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "mutation.h"
#include "targets.h"

namespace gpumux::test {
namespace {

namespace fs = std::filesystem;

class Fuzz : public ::testing::TestWithParam<FuzzTarget> {};

TEST_P(Fuzz, SurvivesWhatWasFoundBefore) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(FUZZ_CORPUS) / GetParam().name, none)) {
    std::ifstream in(entry.path(), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    GetParam().run(text.str());
  }
}

TEST_P(Fuzz, SurvivesWhatIsNearlyRight) {
  constexpr int kInputs = 6000;
  for (const std::string& seed : GetParam().seeds()) GetParam().run(seed);
  Mutation mutation(20261129, GetParam().seeds());
  for (int i = 0; i < kInputs; ++i) GetParam().run(mutation.Next());
}

INSTANTIATE_TEST_SUITE_P(Parsers, Fuzz, ::testing::ValuesIn(FuzzTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gpumux::test
