// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cli/signal_name.h"

namespace gpumux::cli {
namespace {

using ::testing::HasSubstr;

struct Ran {
  int status;
  std::string out, err;
};
Ran Invoke(const std::vector<std::string>& arguments) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Ran ran;
  ran.status = RunCommand(arguments);
  ran.out = ::testing::internal::GetCapturedStdout();
  ran.err = ::testing::internal::GetCapturedStderr();
  return ran;
}

// A runtime folder that does not exist: a command that made it has changed something.
class Commands : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "gpumux-commands-" + std::to_string(::getpid());
    std::filesystem::remove_all(dir_);
    ::setenv("GPUMUX_RUNTIME_DIR", dir_.c_str(), 1);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST_F(Commands, UsageErrorsEndWithTwoAndChangeNothing) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"rnu"}, "did you mean run?"},
      {{"run"}, "there is no command to run"},
      {{"run", "--mem", "10", "true"}, "--mem: '10' has no unit"},
      {{"run", "--gpu", "", "true"}, "--gpu ''"},
      {{"status", "--jsn"}, "did you mean --json?"},
      {{"status", "extra"}, "extra"},
      {{"ps", "--all=1"}, "--all takes no value"},
      {{"stop"}, "there is no tenant to stop"},
      {{"stop", ""}, "exactly one"},
      {{"stop", "a", "b"}, "exactly one"},
      {{"stop", "--signal", "HUGE", "a"}, "--signal: 'HUGE' is not a signal"},
      {{"stop", "--signal", "0", "a"}, "--signal: '0' is not a signal"},
      {{"stop", "--signal", "-9", "a"}, "--signal: '-9' is not a signal"},
      {{"stop", "--grace", "10", "a"}, "--grace: '10' has no unit"},
      {{"stop", "--grace", "2h", "a"}, "more than an hour"},
      {{"stop", "--grace", "nan", "a"}, "--grace: 'nan'"},
      {{"version", "--json=yes"}, "--json takes no value"}};
  for (const auto& [arguments, says] : cases) {
    const Ran ran = Invoke(arguments);
    EXPECT_EQ(ran.status, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(says));
    EXPECT_EQ(ran.out, "");
  }
  EXPECT_FALSE(std::filesystem::exists(dir_));
}

TEST_F(Commands, CommandsOfLaterVersionsEndWithSeven) {
  for (const char* name : {"advise", "bench"}) EXPECT_EQ(Invoke({name}).status, 7);
  EXPECT_EQ(Invoke({"run", "--share", "40%", "true"}).status, 7);
}

TEST_F(Commands, HelpIsTheResultAndSucceeds) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{}, {"help"}, {"--help"}, {"help", "help"}}) {
    const Ran ran = Invoke(arguments);
    EXPECT_EQ(ran.status, 0);
    EXPECT_THAT(ran.out, HasSubstr("Examples:"));
    EXPECT_EQ(ran.err, "");
  }
  for (const char* name : {"run", "status", "ps", "explain", "stop", "completion", "version"}) {
    const Ran by_verb = Invoke({"help", name}), by_option = Invoke({name, "--help"});
    EXPECT_EQ(by_verb.status, 0);
    EXPECT_EQ(by_verb.out, by_option.out);
    EXPECT_THAT(by_verb.out, HasSubstr("Examples:"));
    EXPECT_THAT(by_verb.out, HasSubstr(std::string("Usage: gpumux ") + name));
  }
  EXPECT_EQ(Invoke({"help", "rum"}).status, 2);
  EXPECT_FALSE(std::filesystem::exists(dir_));
}

TEST_F(Commands, AProgramThatCannotBeRunIsKnownBeforeADaemonIsStarted) {
  EXPECT_EQ(Invoke({"run", "--", "no-such-program-here"}).status, 127);
  EXPECT_EQ(Invoke({"run", "--", "/no/such/program"}).status, 127);
  EXPECT_EQ(Invoke({"run", "--", "/etc/passwd"}).status, 126);
  EXPECT_EQ(Invoke({"run", "--", "/tmp"}).status, 126);
  EXPECT_FALSE(std::filesystem::exists(dir_));
}

TEST(Signals, AreNamedInAllUsualWays) {
  for (const char* text : {"TERM", "SIGTERM", "term", "sigterm", "15"})
    EXPECT_EQ(ParseSignal(text), 15) << text;
  EXPECT_EQ(SignalName(9), "SIGKILL");
  for (const char* text : {"", "SIG", "65536", "1x", "-1", "0"}) EXPECT_FALSE(ParseSignal(text)) << text;
}

}  // namespace
}  // namespace gpumux::cli
