// SPDX-License-Identifier: Apache-2.0
#include "cli/man_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "cli/commands.h"
#include "config/keys.h"

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;

// Text without scdoc's markup.
std::string Plainly(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '_' || c == '*' || c == '\\' || c == '`' || c == '<' || c == '#') out += '\\';
    out += c;
  }
  return out;
}

std::string OptionText(const OptionSpec& option) {
  std::string head = fmt::format("*{}*", option.name);
  if (option.takes == Takes::kValue) head += fmt::format(" _{}_", Plainly(option.type));
  if (option.takes == Takes::kOptionalValue) head += fmt::format("[=_{}_]", Plainly(option.type));
  std::string body = Plainly(option.help);
  if (!option.values.empty() && option.values.size() <= 8) {
    std::string values;
    for (const std::string& value : option.values) values += (values.empty() ? "" : ", ") + Plainly(value);
    body += fmt::format(" ({})", values);
  }
  return fmt::format("{}\n\t{}\n\n", head, body);
}

std::string Options(const CommandSpec& spec) {
  std::string out;
  for (const OptionSpec& option : spec.options) {
    if (!option.hidden) out += OptionText(option);
  }
  return out + "*-h*, *--help*\n\tthis command's help\n";
}

// "gpumux run [options] [--] COMMAND" with its name in bold.
std::string Synopsis(const CommandSpec& spec, const std::string& name) {
  const std::string own = "gpumux " + name;
  const std::string rest = spec.usage.starts_with(own) ? spec.usage.substr(own.size()) : spec.usage;
  return fmt::format("*{}*{}\n", own, Plainly(rest));
}

std::string Commands() {
  std::string out;
  for (const Command& command : AllCommands())
    out += fmt::format("*gpumux-{}*(1)\n\t{}\n\n", command.name, Plainly(command.summary));
  return out;
}

// "*run.mem* (size)": help, what holds without it, the option's variable.
std::string Keys() {
  std::string out;
  for (const config::Key& key : config::AllKeys()) {
    out += fmt::format("*{}* ({})\n\t{}. Without it: {}.", Plainly(config::FormatPath(key.path)),
                       Plainly(config::Name(key.type)), Plainly(key.help), Plainly(key.unset));
    if (!key.words.empty())
      out += fmt::format(" One of: {}.", Plainly(fmt::format("{}", fmt::join(key.words, ", "))));
    if (key.variable) out += fmt::format(" Environment: *{}*.", Plainly(key.variable));
    out += fmt::format(" Example: {}\n\n", Plainly(key.example));
  }
  return out;
}

const Command* CommandOf(const std::string& page) {
  for (const Command& command : AllCommands()) {
    if (page == fmt::format("gpumux-{}.1", command.name)) return &command;
  }
  return nullptr;
}

}  // namespace

Result<std::string> ManPage(const std::string& page, const std::string& text) {
  const Command* command = CommandOf(page);
  const bool of_a_command = page.starts_with("gpumux-") && page.ends_with(".1");
  if (of_a_command && !command) return Fail(Code::kNotFound, fmt::format("{} is of no command", page));
  bool name = false, synopsis = false, options = false;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line == "@COMMANDS@") {
      out += Commands();
    } else if (line == "@KEYS@") {
      out += Keys();
    } else if (command && line == "@NAME@") {
      out += fmt::format("gpumux-{} - {}\n", command->name, Plainly(command->summary));
      name = true;
    } else if (command && line == "@SYNOPSIS@") {
      out += Synopsis(command->spec(), command->name);
      synopsis = true;
    } else if (command && line == "@OPTIONS@") {
      out += Options(command->spec());
      options = true;
    } else {
      out += line + "\n";
    }
  }
  if (command && !(name && synopsis && options))
    return Fail(Code::kInvalid, fmt::format("{} needs the lines @NAME@, @SYNOPSIS@ and @OPTIONS@", page));
  return out;
}

}  // namespace gpumux::cli
