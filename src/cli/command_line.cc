// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/nearest.h"

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;

const OptionSpec* Find(const CommandSpec& spec, std::string_view name) {
  for (const OptionSpec& option : spec.options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

bool LooksLikeOption(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

// Where the program begins, as an index into `arguments`; an option's value is
// no beginning. CLI11 sees only what is before.
size_t ProgramBegin(const CommandSpec& spec, const std::vector<std::string>& arguments) {
  size_t i = 0;
  while (i < arguments.size() && arguments[i] != "--" && LooksLikeOption(arguments[i])) {
    const OptionSpec* option = Find(spec, arguments[i]);  // "--mem=1G" is not found, and has its value
    i += option && option->takes == Takes::kValue ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

// This version of CLI11 cannot be told a usage line otherwise.
class UsageFormatter : public CLI::Formatter {
 public:
  explicit UsageFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: " + usage_ + "\n"; }

 private:
  std::string usage_;
};

void Declare(CLI::App& app, const CommandSpec& spec,
             std::map<std::string, std::vector<std::string>>& values) {
  app.description(spec.summary);
  app.formatter(std::make_shared<UsageFormatter>(spec.usage));
  app.footer(spec.footer);
  for (const OptionSpec& option : spec.options) {
    CLI::Option* declared = nullptr;
    if (option.takes == Takes::kNothing) {
      declared = app.add_flag(option.name, option.help);
    } else {
      declared = app.add_option(option.name, values[option.name], option.help);
      declared->type_name(option.takes == Takes::kValue ? option.type : "[=" + option.type + "]");
      // One value each time it is given.
      declared->expected(option.takes == Takes::kValue ? 1 : 0, 1)->allow_extra_args(false);
      declared->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    if (option.hidden) declared->group("");
  }
}

// Faults that CLI11 would report without naming what is wrong.
Status CheckNames(const CommandSpec& spec, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!LooksLikeOption(arguments[i])) continue;
    if (arguments[i] == "--") break;
    const size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    if (name == "-h" || name == "--help") continue;
    const OptionSpec* option = Find(spec, name);
    if (!option) {
      std::vector<std::string> names;
      for (const OptionSpec& candidate : spec.options) names.push_back(candidate.name);
      const auto nearest = Nearest(name, names);
      return Fail(Code::kInvalid, fmt::format("there is no option {}", name.substr(0, 60)),
                  nearest ? fmt::format("did you mean {}?", *nearest) : "see --help");
    }
    if (option->takes == Takes::kNothing && equals != std::string::npos) {
      return Fail(Code::kInvalid, fmt::format("{} takes no value", name));
    }
    if (option->takes == Takes::kValue && equals == std::string::npos) {
      if (i + 1 >= arguments.size() || arguments[i + 1] == "--") {
        return Fail(Code::kInvalid, fmt::format("{} needs a value", name),
                    fmt::format("write {}={}", name, option->type));
      }
      ++i;
    }
  }
  return {};
}

// "--mem X" as "--mem=X": a value may begin with '-' and is judged by the command.
std::vector<std::string> Joined(const CommandSpec& spec, const std::vector<std::string>& arguments) {
  std::vector<std::string> joined;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const OptionSpec* option = Find(spec, arguments[i]);
    if (option && option->takes == Takes::kValue && i + 1 < arguments.size()) {
      joined.push_back(arguments[i] + "=" + arguments[i + 1]);
      ++i;
    } else {
      joined.push_back(arguments[i]);
    }
  }
  return joined;
}

}  // namespace

std::optional<std::string> ParsedCommandLine::Value(const std::string& option) const {
  const auto found = values.find(option);
  if (found == values.end() || found->second.empty()) return std::nullopt;
  return found->second.back();
}

Result<ParsedCommandLine> ParseArguments(const CommandSpec& spec, const std::vector<std::string>& arguments) {
  ParsedCommandLine parsed;
  std::vector<std::string> own = arguments;
  if (spec.words == CommandSpec::Words::kProgram) {
    size_t begin = ProgramBegin(spec, arguments);
    own.assign(arguments.begin(), arguments.begin() + static_cast<long>(begin));
    if (begin < arguments.size() && arguments[begin] == "--") ++begin;
    parsed.words.assign(arguments.begin() + static_cast<long>(begin), arguments.end());
  }
  if (const Status names = CheckNames(spec, own); !names) return tl::unexpected(names.error());
  own = Joined(spec, own);

  // What CLI11 is good at: telling options, values and words apart, and help.
  std::map<std::string, std::vector<std::string>> values;
  CLI::App app;
  Declare(app, spec, values);
  std::vector<std::string> words;
  if (spec.words == CommandSpec::Words::kSome || spec.words == CommandSpec::Words::kTenant)
    app.add_option("words", words);
  std::vector<std::string> reversed(own.rbegin(), own.rend());
  // CLI11 drops an empty value after '='; it is kept here for the command to refuse.
  std::erase_if(reversed, [&parsed](const std::string& argument) {
    const size_t equals = argument.find('=');
    if (!LooksLikeOption(argument) || equals == std::string::npos || equals + 1 != argument.size())
      return false;
    parsed.values[argument.substr(0, equals)].emplace_back();
    return true;
  });
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    parsed.help = true;
    return parsed;
  } catch (const CLI::ParseError& error) {
    return Fail(Code::kInvalid, error.what(), "see --help");
  }
  for (const OptionSpec& option : spec.options) {
    const CLI::Option* declared = app.get_option(option.name);
    if (declared->count() == 0) continue;
    std::vector<std::string>& out = parsed.values[option.name];
    out.insert(out.end(), values[option.name].begin(), values[option.name].end());
    if (out.empty()) out.emplace_back();
  }
  parsed.words.insert(parsed.words.end(), words.begin(), words.end());
  return parsed;
}

std::string HelpText(const CommandSpec& spec) {
  std::map<std::string, std::vector<std::string>> values;
  CLI::App app;
  Declare(app, spec, values);
  return app.help();
}

}  // namespace gpumux::cli
