// SPDX-License-Identifier: Apache-2.0
//
// The scripts of `gpumux completion`, used by the shells themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

using List = std::vector<std::string>;

List Lines(const std::string& text) {
  List lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// What bash would offer for these words, the last being that under the cursor.
// They are as bash has them: cut before and behind '=' and ':'.
List Complete(Sandbox& box, const List& words) {
  std::string quoted;
  for (const std::string& word : words) quoted += " '" + word + "'";
  const std::string gpumux = Sandbox::Program("gpumux");
  const std::string script = "PATH=" + gpumux.substr(0, gpumux.rfind('/')) +
                             ":$PATH; set -u; source <(gpumux completion bash) && complete -p gpumux >&2; "
                             "COMP_WORDS=(" +
                             quoted + "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _gpumux gpumux; " +
                             R"(printf '%s\n' "${COMPREPLY[@]-}")";
  const Outcome ran = box.Run({"/bin/bash", "--norc", "-c", script});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.err, "complete -F _gpumux gpumux\n");
  List lines = Lines(ran.out);
  return lines == List{""} ? List{} : lines;
}

// Commands as the help lists them.
List Commands(Sandbox& box) {
  List names;
  bool inside = false;
  for (const std::string& line : Lines(box.RunGpumux({"--help"}).out)) {
    if (line == "Commands:") {
      inside = true;
    } else if (inside && line.empty()) {
      break;
    } else if (inside) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      names.push_back(name);
    }
  }
  EXPECT_THAT(names, IsSupersetOf({"run", "status", "help"}));
  return names;
}

// Options as a command's help lists them.
List Options(Sandbox& box, const std::string& command) {
  List options;
  static const std::regex kOption("^  (?:-h,)?(--[a-z-]+).*");
  for (const std::string& line : Lines(box.RunGpumux({command, "--help"}).out)) {
    std::smatch match;
    if (std::regex_match(line, match, kOption)) options.push_back(match[1]);
  }
  EXPECT_THAT(options, Contains("--help")) << command;
  return options;
}

TEST(Completion, OffersEveryCommandOfTheHelp) {
  Sandbox box;
  List expected = Commands(box);
  EXPECT_THAT(Complete(box, {"gpumux", "st"}), ElementsAre("status", "stop"));
  EXPECT_THAT(Complete(box, {"gpumux", "help", ""}), UnorderedElementsAreArray(expected));
  expected.insert(expected.end(), {"--help", "--version"});
  EXPECT_THAT(Complete(box, {"gpumux", ""}), UnorderedElementsAreArray(expected));
}

TEST(Completion, OffersEveryOptionOfACommandsHelp) {
  Sandbox box;
  for (const std::string& command : Commands(box)) {
    if (command == "help") continue;  // it has none
    EXPECT_THAT(Complete(box, {"gpumux", command, "--"}), UnorderedElementsAreArray(Options(box, command)))
        << command;
  }
}

TEST(Completion, OffersTheValuesOfAnOption) {
  Sandbox box;
  const List modes{"auto", "exclusive", "timeslice", "turns", "mps"};
  EXPECT_EQ(Complete(box, {"gpumux", "run", "--mode", ""}), modes);
  EXPECT_EQ(Complete(box, {"gpumux", "run", "--mode", "="}), modes);
  EXPECT_THAT(Complete(box, {"gpumux", "run", "--mode", "=", "t"}), ElementsAre("timeslice", "turns"));
  EXPECT_THAT(Complete(box, {"gpumux", "run", "--mem", "10GiB", ":", "20GiB", "--mode", "e"}),
              ElementsAre("exclusive"));
  EXPECT_THAT(Complete(box, {"gpumux", "run", "--mem", ""}), IsEmpty());
  EXPECT_THAT(Complete(box, {"gpumux", "stop", "--signal", "K"}), ElementsAre("KILL"));
  EXPECT_THAT(Complete(box, {"gpumux", "completion", ""}), ElementsAre("bash", "zsh"));
  // Every value that is offered is one that the command takes.
  for (const std::string& mode : modes)
    EXPECT_EQ(box.RunGpumux({"run", "--mode", mode, "--", "true"}).exit_code, 0) << mode;
}

TEST(Completion, LeavesTheProgramToItself) {
  Sandbox box;
  for (const List& before : {List{"gpumux", "run", "--mem", "=", "10GiB", "--"},
                             List{"gpumux", "run", "--mode", "auto", "--wait"}}) {
    List words = before;
    words.emplace_back("unam");
    EXPECT_THAT(Complete(box, words), Contains("uname"));
    words.back() = "uname";
    words.emplace_back("--m");
    EXPECT_THAT(Complete(box, words), IsEmpty());  // --mem, --mode are not the program's
  }
}

TEST(Completion, OffersLiveTenantsAndSaysNothingWithoutADaemon) {
  Sandbox box;
  EXPECT_THAT(Complete(box, {"gpumux", "stop", ""}), IsEmpty());
  EXPECT_EQ(box.DaemonPid(), 0);
  Process run = box.Gpumux({"run", "--name", "serve", "--", "sleep", "60"});
  ASSERT_TRUE(WaitUntil("it runs", [&] { return !box.StatusData()["tenants"].empty(); }));
  const std::string id = box.StatusData()["tenants"][0]["id"];
  EXPECT_THAT(Complete(box, {"gpumux", "stop", "s"}), ElementsAre("serve"));
  EXPECT_THAT(Complete(box, {"gpumux", "stop", "--grace", "5s", ""}),
              UnorderedElementsAreArray({id, std::string("serve")}));
  // A name that two tenants have names neither.
  Process twin = box.Gpumux({"run", "--name", "serve", "--", "sleep", "60"});
  ASSERT_TRUE(WaitUntil("the twin runs", [&] { return box.StatusData()["tenants"].size() == 2; }));
  const List both = Complete(box, {"gpumux", "stop", ""});
  EXPECT_EQ(both.size(), 2u);
  EXPECT_THAT(both, Not(Contains("serve")));
}

TEST(Completion, NoShellOrAnUnknownOneIsAUsageError) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux({"completion"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"completion", "bash", "zsh"}).exit_code, 2);
  const Outcome fish = box.RunGpumux({"completion", "fish"});
  EXPECT_EQ(fish.exit_code, 2);
  EXPECT_THAT(fish.err, HasSubstr("'fish'"));
}

TEST(Completion, ZshHasEveryOptionOfTheHelp) {
  Sandbox box;
  const std::string script = box.RunGpumux({"completion", "zsh"}).out;
  for (const std::string& command : Commands(box)) {
    const size_t begin = script.find("\n    " + command + ")\n");
    ASSERT_NE(begin, std::string::npos) << command;
    const std::string part = script.substr(begin, script.find(";;", begin) - begin);
    if (command == "help") continue;
    for (const std::string& option : Options(box, command)) {
      const std::regex stands("['*{,]" + option + "(=-?)?[}\\[]");
      EXPECT_TRUE(std::regex_search(part, stands)) << command << " " << option;
    }
  }
}

TEST(Completion, ZshReadsItsScript) {
  Sandbox box;
  if (box.Run({"/bin/sh", "-c", "command -v zsh"}).exit_code != 0) GTEST_SKIP() << "no zsh on this machine";
  std::ofstream(box.dir() + "/_gpumux") << box.RunGpumux({"completion", "zsh"}).out;
  const Outcome read = box.Run({"/bin/sh", "-c", "zsh -n " + box.dir() + "/_gpumux"});
  EXPECT_EQ(read.exit_code, 0) << read.err;
  EXPECT_EQ(read.err, "");
}

}  // namespace
}  // namespace gpumux::test
