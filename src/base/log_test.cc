// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace gpumux {
namespace {

TEST(Log, WritesOneLineAnEventAboveItsLevelAndForgesNone) {
  const std::string path = "/tmp/gpumux-log-test-" + std::to_string(::getpid());
  ASSERT_TRUE(SetLogFile(path));
  LogDebug("not {}", "shown");
  LogInfo("hello {}", 1);
  LogWarning("{}", "two\nlines\x1b[31m");
  SetLogLevel(LogLevel::kError);
  LogInfo("not shown either");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  ::unlink(path.c_str());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0],
              ::testing::ContainsRegex("^20[0-9][0-9]-[0-9-]+T[0-9:]+\\.[0-9]{3}[+-][0-9]{2}:[0-9]{2} info"));
  EXPECT_THAT(lines[0], ::testing::EndsWith("hello 1"));
  EXPECT_THAT(lines[1], ::testing::EndsWith("two?lines?[31m"));
}

TEST(Log, KnowsItsLevelsByName) {
  EXPECT_EQ(ParseLogLevel("warning"), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel("loud").error().code, Code::kInvalid);
}

}  // namespace
}  // namespace gpumux
