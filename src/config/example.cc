// SPDX-License-Identifier: Apache-2.0
#include "config/example.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/keys.h"

namespace gpumux::config {
namespace {

constexpr size_t kWidth = 100;

// Lines of comments, broken between words.
std::string Comment(const std::string& text) {
  std::string out, line = "#";
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line = "#";
    }
    line += " " + word;
    at = end + 1;
  }
  return out + line + "\n";
}

std::string TableOf(const Key& key) {
  Path path(key.path.begin(), key.path.end() - 1);
  for (std::string& part : path) {
    if (part == kAnyName) part = path[1] == "user" ? "ann" : "students";
  }
  return FormatPath(path);
}

}  // namespace

std::string ExampleText() {
  std::string out =
      "# Configuration of gpumux. Take away the '#' in front of what you want to set.\n"
      "# For the machine: /etc/gpumux/config.toml, then /etc/gpumux/conf.d/*.toml in the order of their "
      "names.\n"
      "# For one user: ~/.config/gpumux/config.toml, which goes before these.\n";
  std::string table;
  for (const Key& key : AllKeys()) {
    if (TableOf(key) != table) {
      table = TableOf(key);
      out += "\n" + Comment(TableHelp(key)) + fmt::format("[{}]\n", table);
    }
    std::string help = fmt::format("{}. Without it: {}.", key.help, key.unset);
    if (!key.words.empty()) help += fmt::format(" One of: {}.", fmt::join(key.words, ", "));
    if (key.variable) help += fmt::format(" {} in the environment goes before it.", key.variable);
    out += Comment(help) + fmt::format("#{} = {}\n", key.path.back(), key.example);
  }
  return out;
}

}  // namespace gpumux::config
