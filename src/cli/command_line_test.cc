// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Takes = OptionSpec::Takes;

CommandSpec Spec(CommandSpec::Words words) {
  return {.usage = "gpumux x [options]",
          .summary = "Does x.",
          .options = {{"--mem", Takes::kValue, "A", "memory"},
                      {"--label", Takes::kValue, "K=V", "label"},
                      {"--wait", Takes::kOptionalValue, "T", "wait"},
                      {"--json", Takes::kNothing, "", "json"}},
          .footer = "Examples:\n  gpumux x",
          .words = words};
}

TEST(CommandLine, WhatBelongsToTheProgramIsNotLookedAt) {
  const CommandSpec spec = Spec(CommandSpec::Words::kProgram);
  const auto line =
      ParseArguments(spec, {"--mem", "1G", "--wait", "python3", "--mem", "2G", "--", "--json", "-h"});
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(line->Value("--mem"), "1G");
  EXPECT_EQ(line->Value("--wait"), "");
  EXPECT_FALSE(line->Has("--json"));
  EXPECT_FALSE(line->help);
  EXPECT_THAT(line->words, ElementsAre("python3", "--mem", "2G", "--", "--json", "-h"));
}

TEST(CommandLine, TwoDashesBeginTheProgramWhateverItIsCalled) {
  const CommandSpec spec = Spec(CommandSpec::Words::kProgram);
  EXPECT_THAT(ParseArguments(spec, {"--json", "--", "--mem", "x"})->words, ElementsAre("--mem", "x"));
  EXPECT_THAT(ParseArguments(spec, {"--"})->words, ElementsAre());
  EXPECT_THAT(ParseArguments(spec, {"--wait=5s", "--", "a"})->Value("--wait"), "5s");
  // A value is no program, even one that looks like an option.
  EXPECT_EQ(ParseArguments(spec, {"--mem", "-1G", "a"})->Value("--mem"), "-1G");
}

TEST(CommandLine, RepeatedOptionsKeepTheirOrderAndEmptyValuesAreSeen) {
  const CommandSpec spec = Spec(CommandSpec::Words::kNone);
  EXPECT_THAT(ParseArguments(spec, {"--label", "a=1", "--label=b=2"})->values.at("--label"),
              ElementsAre("a=1", "b=2"));
  EXPECT_EQ(ParseArguments(spec, {"--mem="})->Value("--mem"), "");
  EXPECT_EQ(ParseArguments(spec, {"--mem", ""})->Value("--mem"), "");
  EXPECT_EQ(ParseArguments(spec, {})->Value("--mem"), std::nullopt);
}

struct Bad {
  std::vector<std::string> arguments;
  const char* says;
};
class CommandLineRefuses : public ::testing::TestWithParam<Bad> {};
TEST_P(CommandLineRefuses, Arguments) {
  const auto line = ParseArguments(Spec(CommandSpec::Words::kNone), GetParam().arguments);
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code, Code::kInvalid);
  EXPECT_THAT(line.error().ToString(), HasSubstr(GetParam().says));
}
INSTANTIATE_TEST_SUITE_P(Cases, CommandLineRefuses,
                         ::testing::Values(Bad{{"--memory", "1G"}, "no option --memory; did you mean --mem?"},
                                           Bad{{"--quux"}, "no option --quux; see --help"},
                                           Bad{{"-x"}, "no option -x"},
                                           Bad{{"--mem"}, "--mem needs a value; write --mem=A"},
                                           Bad{{"--mem", "--"}, "--mem needs a value"},
                                           Bad{{"--json=1"}, "--json takes no value"},
                                           Bad{{"stray"}, "stray"}));

TEST(CommandLine, HelpIsAskedForAndNamesEveryOption) {
  const CommandSpec spec = Spec(CommandSpec::Words::kNone);
  EXPECT_TRUE(ParseArguments(spec, {"--help"})->help);
  EXPECT_TRUE(ParseArguments(spec, {"-h"})->help);
  const std::string help = HelpText(spec);
  for (const char* text :
       {"Usage: gpumux x [options]", "Does x.", "--mem A", "--label K=V", "--wait", "--json", "Examples:"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

}  // namespace
}  // namespace gpumux::cli
