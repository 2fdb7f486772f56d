// SPDX-License-Identifier: Apache-2.0
//
// `gpumux top` in a real terminal, with a real daemon on the software GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "top.h"

namespace gpumux::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

bool Matches(const std::string& screen, const char* pattern) {
  return std::regex_search(screen, std::regex(pattern));
}

// Fills `count` columns from `from` on with '~'; no character of the table is wide.
std::string Blot(const std::string& line, size_t from, size_t count) {
  std::string out;
  size_t columns = 0;
  for (const char byte : line) {
    const bool tail = (byte & 0xc0) == 0x80;
    columns += tail ? 0 : 1;
    const bool blotted = columns > from && columns <= from + count;
    if (!blotted)
      out += byte;
    else if (!tail)
      out += '~';
  }
  return out;
}

// The screen without what differs from run to run.
std::string Masked(const std::string& screen) {
  std::vector<std::string> lines = Lines(screen);
  std::vector<std::pair<size_t, size_t>> blots;  // of the table
  bool in_table = false;
  std::string out;
  for (std::string& line : lines) {
    if (line.rfind("gpumux top", 0) == 0) line = line.substr(0, line.find("SIMULATED") + 9);
    line = std::regex_replace(line, std::regex("[0-9]{2}:[0-9]{2}:[0-9]{2}"), "HH:MM:SS");
    line = std::regex_replace(line, std::regex("last [0-9]+ s, "), "last N s, ");
    line = std::regex_replace(line, std::regex("(held|busy) [0-9]+ %"), "$1 N %");
    line = std::regex_replace(line, std::regex("t-[0-9a-z]{12}"), "t-~~~~~~~~~~~~");
    // Behind a pid everything is moved; so it ends there.
    line = std::regex_replace(line, std::regex("pid [0-9]+.*"), "pid N");
    if (const size_t lane = line.find("│"); lane != std::string::npos) line = line.substr(0, lane) + "│~";
    if (line.find("TENANT ") != std::string::npos) {
      in_table = true;
      for (const char* head : {"HELD", "LAUNCH/s", "WAITED"}) {
        if (const size_t at = line.find(head); at != std::string::npos)
          blots.emplace_back(at, std::string(head).size());
      }
    } else if (line.empty()) {
      in_table = false;
    } else if (in_table) {
      for (const auto& [from, count] : blots) line = Blot(line, from, count);
    }
    // How many there are, and in which order, is another's matter.
    if (line.rfind("HH:MM:SS", 0) == 0) line = "HH:MM:SS events";
    if (line.empty() || (line == "HH:MM:SS events" && out.ends_with(line + "\n"))) continue;
    out += line + "\n";
  }
  return out;
}

void ExpectGolden(const std::string& screen, const std::string& name) {
  const std::string path = std::string(GPUMUX_GOLDEN_DIR) + "/" + name;
  if (std::getenv("GPUMUX_UPDATE_GOLDEN")) std::ofstream(path) << Masked(screen);
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(Masked(screen), golden.str()) << "as it was:\n" << screen;
}

TEST_F(Top, LooksAsItShouldAtThreeSizes) {
  const passwd* user = ::getpwuid(::getuid());
  if (!user || std::string(user->pw_name) != "root")
    GTEST_SKIP() << "the golden screens have root as the owner";
  Process serve = TakeTurns("serve", "40GiB", "50%", "25%:25%");
  ASSERT_TRUE(WaitUntil("serve runs",
                        [&] { return box_.DaemonPid() > 0 && box_.StatusData()["tenants"].size() == 1; }));
  Process train = TakeTurns("train", "60GiB", "80%", "50%");
  ASSERT_TRUE(WaitUntil("train runs", [&] { return box_.StatusData()["tenants"].size() == 2; }));
  Process late = Hold("late", "80GiB", {"--mode", "turns"});
  ASSERT_TRUE(WaitUntil("late waits", [&] { return box_.StatusData()["tenants"].size() == 3; }));
  Process stranger =
      box_.Start({"/usr/bin/env", "LD_LIBRARY_PATH=" + Sandbox::Program("../lib/gpumux/softgpu"),
                  Sandbox::Program("gpumux-workload"), "--alloc", "5GiB", "--hold", "600"});
  Pane pane(box_, 80, 24, Command("--interval 200ms"));
  const auto settled = [](const std::string& screen) {
    return Matches(screen, "A serve .*20.5/40.0 .* [0-9]{2} %") &&
           Matches(screen, "B train .*48.5/60.0 .* [0-9]{2} %") && Matches(screen, "late .*waiting") &&
           Matches(screen, "other\\) .* 5\\.[0-9]/") &&
           Matches(screen, "late waits.* 34.3 GiB can be promised");
  };
  for (const auto& [width, height] : {std::pair(80, 24), std::pair(120, 40), std::pair(200, 50)}) {
    pane.Resize(width, height);
    std::string screen;
    ASSERT_TRUE(pane.WaitFor("the screen has the new size", [&](const std::string& shown) {
      screen = shown;
      const auto lines = Lines(shown);
      return settled(shown) && lines.size() == static_cast<size_t>(height) &&
             lines.back().find("F10Quit") != std::string::npos;
    }));
    ExpectGolden(screen, "top-" + std::to_string(width) + "x" + std::to_string(height) + ".txt");
  }
  // What was masked: a quarter of the GPU for the one that may have no more, and the rest.
  ASSERT_TRUE(pane.WaitFor("the lanes show the shares", [&](const std::string& shown) {
    std::smatch serve_part, train_part;
    if (!std::regex_search(shown, serve_part, std::regex(" A serve +│.*│ +([0-9]+) %")) ||
        !std::regex_search(shown, train_part, std::regex(" B train +│.*│ +([0-9]+) %")))
      return false;
    const int a = std::stoi(serve_part[1]), b = std::stoi(train_part[1]);
    return a >= 15 && a <= 35 && b >= 50 && a + b <= 110;
  }));
}

TEST_F(Top, StopsAndChangesAfterAYes) {
  Process a = Hold("alpha", "10GiB"), b = Hold("beta", "10GiB");
  ASSERT_TRUE(WaitUntil("both run",
                        [&] { return box_.DaemonPid() > 0 && box_.StatusData()["tenants"].size() == 2; }));
  Pane pane(box_, 100, 24, Command("--interval 200ms"));
  ASSERT_TRUE(pane.WaitForText("alpha"));
  // To the one that is meant, by the filter.
  pane.Press({"F4"});
  pane.Type("BETA");
  pane.Press({"Enter"});
  ASSERT_TRUE(pane.WaitFor("beta alone is in the table", [](const std::string& screen) {
    return !Matches(screen, "alpha +[a-z0-9-]+ +running");
  }));
  pane.Press({"F7"});
  pane.Type("12GiB:20GiB");
  pane.Press({"Enter"});
  ASSERT_TRUE(pane.WaitForText("y: memory 12GiB:20GiB for beta"));
  pane.Press({"y"});
  ASSERT_TRUE(pane.WaitForText("/20.0"));
  for (const auto& tenant : box_.StatusData()["tenants"])
    EXPECT_EQ(tenant["mem_guaranteed_bytes"], (tenant["name"] == "beta" ? 12ull : 10ull) << 30);
  // What the daemon refuses, it says.
  pane.Press({"m"});
  pane.Type("900GiB");
  pane.Press({"Enter", "y"});
  ASSERT_TRUE(pane.WaitFor("the refusal is told", [](const std::string& screen) {
    return Matches(Lines(screen).back(), "^t-[a-z0-9]+: .*900");
  }));
  pane.Press({"F9"});
  ASSERT_TRUE(pane.WaitForText("y: stop beta"));
  pane.Press({"n"});
  ASSERT_TRUE(pane.WaitForText("nothing was changed"));
  EXPECT_FALSE(b.Ended());
  pane.Press({"F9", "y"});
  EXPECT_EQ(b.Wait().exit_code, 143);
  ASSERT_TRUE(pane.WaitForText("nothing passes the filter"));
  pane.Press({"Escape"});
  ASSERT_TRUE(pane.WaitForText("alpha"));
  EXPECT_FALSE(a.Ended());
  pane.Press({"q"});
  ASSERT_TRUE(pane.WaitForText("LEFT 0"));
}

TEST_F(Top, SaysWhatStatusSaysWithoutADaemon) {
  Pane pane(box_, 80, 24, Command("--interval 200ms"));
  ASSERT_TRUE(pane.WaitForText("no gpumux daemon runs: these figures are NVML's alone"));
  EXPECT_THAT(pane.Screen(), HasSubstr("140.4 GiB"));
  EXPECT_THAT(box_.RunGpumux({"status"}).err,
              HasSubstr("no gpumux daemon runs: these figures are NVML's alone"));
  EXPECT_EQ(box_.DaemonPid(), 0);
  // A signal ends it, and the terminal is as before.
  ASSERT_EQ(kill(box_.PidOf("gpumux"), SIGTERM), 0);
  ASSERT_TRUE(pane.WaitForText("LEFT 143"));
  EXPECT_EQ(pane.Format("#{alternate_on} #{cursor_flag}"), "0 1\n");
}

TEST_F(Top, AProgramsNameDoesNotReachTheTerminal) {
  const std::string evil =
      "\x1b]2;owned\a\x1b[2J\xc2\x9b"
      "7m\xe2\x80\xaeX";
  Process a = box_.Gpumux({"run", "--name", "alpha", "--", "sh", "-c", "exec sleep 600", evil});
  ASSERT_TRUE(
      WaitUntil("it runs", [&] { return box_.DaemonPid() > 0 && box_.StatusData()["tenants"].size() == 1; }));
  // A process outside gpumux is called as it likes.
  const std::string program = box_.dir() + "/\x1b]2;oops\a";
  std::filesystem::copy_file(Sandbox::Program("gpumux-workload"), program);
  Process stranger =
      box_.Start({"/usr/bin/env", "LD_LIBRARY_PATH=" + Sandbox::Program("../lib/gpumux/softgpu"), program,
                  "--alloc", "1GiB", "--hold", "600"});
  Pane pane(box_, 160, 30, Command("--interval 200ms"));
  ASSERT_TRUE(pane.WaitFor("the other program is in the table", [](const std::string& screen) {
    return Matches(screen, "unmanaged pid [0-9]+ \\?\\]2;oops\\?");
  }));
  ASSERT_TRUE(pane.WaitForText("?]2;owned??[2J?7m?X"));
  pane.Press({"Enter"});
  ASSERT_TRUE(pane.WaitForText("command       sh -c exec sleep 600 ?]2;owned??[2J?7m?X"));
  EXPECT_THAT(pane.Format("#{pane_title}"), Not(AnyOf(HasSubstr("owned"), HasSubstr("oops"))));
  // As text, for whoever reads it in a terminal.
  const Outcome once = box_.RunGpumux({"top", "--once", "--interval", "100ms"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_THAT(once.out, HasSubstr("alpha"));
  for (const char c : once.out) ASSERT_TRUE(c == '\n' || (c >= ' ' && c != 0x7f) || (c & 0x80)) << once.out;
}

TEST_F(Top, AsciiIsAsciiAndReadonlyChangesNothing) {
  Process a = Hold("alpha", "10GiB");
  ASSERT_TRUE(
      WaitUntil("it runs", [&] { return box_.DaemonPid() > 0 && box_.StatusData()["tenants"].size() == 1; }));
  Pane pane(box_, 80, 24, Command("--ascii --readonly"));
  ASSERT_TRUE(pane.WaitForText("alpha"));
  pane.Press({"F9"});
  ASSERT_TRUE(pane.WaitForText("read-only: started with --readonly"));
  pane.Press({"F1"});
  ASSERT_TRUE(pane.WaitForText("Bar of memory"));
  for (const char c : pane.Screen()) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
  pane.Press({"C-c"});
  ASSERT_TRUE(pane.WaitForText("LEFT 130"));
  EXPECT_FALSE(a.Ended());
}

TEST_F(Top, ATerminalThatIsNotKnownIsAnErrorWithAWayOut) {
  for (const char* term : {"no-such-terminal", "dumb", ""}) {
    SCOPED_TRACE(term);
    Sandbox box;
    Pane pane(box, 160, 24, "TERM=" + std::string(term) + "; export TERM; " + Command());
    ASSERT_TRUE(pane.WaitForText("LEFT 7"));
    EXPECT_THAT(pane.Screen(), HasSubstr("gpumux top --once"));
  }
}

TEST(TopOnce, IsOneScreenOfAKnownSizeWithoutATerminal) {
  Sandbox box;
  const auto lines_of = [](const Outcome& ran) { return std::count(ran.out.begin(), ran.out.end(), '\n'); };
  const Outcome plain = box.RunGpumux({"top"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(lines_of(plain), 24);
  EXPECT_THAT(plain.out, HasSubstr("no gpumux daemon runs: these figures are NVML's alone"));
  box.SetEnv("COLUMNS", "120");
  box.SetEnv("LINES", "40");
  EXPECT_EQ(lines_of(box.RunGpumux({"top", "--once"})), 40);
  for (const char* interval : {"1", "50ms", "2h", "x"}) {
    const Outcome wrong = box.RunGpumux({"top", "--once", "--interval", interval});
    EXPECT_EQ(wrong.exit_code, 2) << interval;
    EXPECT_THAT(wrong.err, HasSubstr("--interval")) << interval;
  }
}

TEST(TopOnce, FailsAsStatusDoesWhereThereIsNothingToShow) {
  Sandbox box("no-such-gpu");
  const Outcome none = box.RunGpumux({"top", "--once"}), status = box.RunGpumux({"status"});
  EXPECT_EQ(none.exit_code, status.exit_code);
  EXPECT_THAT(status.err, HasSubstr(none.err));
  EXPECT_NE(none.exit_code, 0);
}

}  // namespace
}  // namespace gpumux::test
