// SPDX-License-Identifier: Apache-2.0
#include "cli/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTemplate =
    "gpumux-stop(1)\n\n# NAME\n\n@NAME@\n\n# SYNOPSIS\n\n@SYNOPSIS@\n\n# OPTIONS\n\n@OPTIONS@\n";

TEST(ManPage, SaysWhatTheCommandLineSays) {
  const auto page = ManPage("gpumux-stop.1", kTemplate);
  ASSERT_TRUE(page) << page.error().message;
  EXPECT_THAT(*page, HasSubstr("gpumux-stop - end a tenant\n"));
  EXPECT_THAT(*page, HasSubstr("*gpumux stop* [options] TENANT\n"));
  for (const OptionSpec& option : StopSpec().options) EXPECT_THAT(*page, HasSubstr("*" + option.name + "*"));
  EXPECT_THAT(*page, HasSubstr("*--grace* _T_\n\t"));
  EXPECT_THAT(*page, Not(HasSubstr("@")));
}

TEST(ManPage, LeavesHiddenOptionsOut) {
  const auto page = ManPage("gpumux-completion.1", kTemplate);
  ASSERT_TRUE(page);
  EXPECT_THAT(*page, Not(HasSubstr("--tenants")));
}

TEST(ManPage, RefusesAPageThatCouldGoStale) {
  EXPECT_EQ(ManPage("gpumux-rnu.1", kTemplate).error().code, Code::kNotFound);
  EXPECT_EQ(ManPage("gpumux-stop.1", "# NAME\n\n@NAME@\n").error().code, Code::kInvalid);
}

TEST(ManPage, ListsEveryCommand) {
  const auto page = ManPage("gpumux.1", "# COMMANDS\n\n@COMMANDS@\n");
  ASSERT_TRUE(page);
  for (const Command& command : AllCommands())
    EXPECT_THAT(*page, HasSubstr("*gpumux-" + std::string(command.name) + "*(1)"));
}

TEST(ManPage, ListsEveryKeyOfTheConfiguration) {
  const auto page = ManPage("gpumux-config.5", "# KEYS\n\n@KEYS@\n");
  ASSERT_TRUE(page);
  EXPECT_THAT(*page, HasSubstr("*run.mem* ("));
  EXPECT_THAT(*page, HasSubstr("*quota.every-user.memory* (size)\n\t"));
  EXPECT_THAT(*page, HasSubstr("*GPUMUX\\_MEM*"));
}

}  // namespace
}  // namespace gpumux::cli
