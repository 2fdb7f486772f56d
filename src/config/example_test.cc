// SPDX-License-Identifier: Apache-2.0
//
// What is written from the table of keys: the example, and the reference, which
// people keep and this compares.
#include "config/example.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "config/configuration.h"

namespace gpumux::config {
namespace {

using ::testing::IsEmpty;

Settings Accepted(const std::string& text) {
  Settings settings;
  std::vector<Problem> problems;
  ReadText("example", text, settings, problems);
  for (const Problem& problem : problems) ADD_FAILURE() << problem.ToString();
  return settings;
}

std::string FileText(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Example, SetsNothingAsItIs) { EXPECT_THAT(Accepted(ExampleText()), IsEmpty()); }

TEST(Example, HasEveryKeyWithAValueThatIsAccepted) {
  std::string text;
  std::istringstream lines(ExampleText());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 110u) << line;
    text += (line.starts_with("#") && !line.starts_with("# ") ? line.substr(1) : line) + "\n";
  }
  const Settings settings = Accepted(text);
  EXPECT_EQ(settings.size(), AllKeys().size()) << text;
  for (const auto& [path, setting] : settings) EXPECT_EQ(FindKey(path), setting.key);
}

// | `key` | type | without it | meaning |
std::string Row(const Key& key) {
  std::string words;
  for (const char* word : key.words) words += fmt::format("{}`\"{}\"`", words.empty() ? "" : ", ", word);
  return fmt::format("| `{}` | {} | {} | {}{} |", FormatPath(key.path),
                     words.empty() ? std::string(Name(key.type)) : words, key.unset, key.help,
                     key.variable ? fmt::format(" (`{}`)", key.variable) : "");
}

TEST(Reference, HasARowOfEveryKeyAndNoOther) {
  const std::string text = FileText(GPUMUX_DOCS_DIR "/reference/config.md");
  std::string rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| `")) rows += line + "\n";
  }
  std::string expected;
  for (const Key& key : AllKeys()) expected += Row(key) + "\n";
  EXPECT_EQ(rows, expected);
}

TEST(Reference, NamesEveryVariable) {
  const std::string text = FileText(GPUMUX_DOCS_DIR "/reference/environment.md");
  for (const Key& key : AllKeys()) {
    if (key.variable) {
      EXPECT_NE(text.find(fmt::format("`{}`", key.variable)), std::string::npos) << key.variable;
    }
  }
}

}  // namespace
}  // namespace gpumux::config
