// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::cli {

// The options of one command, declared as data. Values are text here; each
// command judges its own, so that messages can name option, value and example.
struct OptionSpec {
  enum class Takes { kNothing, kValue, kOptionalValue };
  std::string name;  // "--mem"
  Takes takes = Takes::kNothing;
  std::string type;  // for the help: "SIZE"
  std::string help;
  std::vector<std::string> values = {};  // those that completion offers
  bool hidden = false;
};

struct CommandSpec {
  std::string usage;  // "gpumux run [options] [--] COMMAND [ARGUMENT...]"
  std::string summary;
  std::vector<OptionSpec> options;
  std::string footer;  // examples
  // kProgram: from the first word that is no option (or from `--`) on,
  // everything belongs to the program that is started. kTenant: an id or a name.
  enum class Words { kNone, kSome, kTenant, kProgram } words = Words::kNone;
  std::vector<std::string> choices = {};  // of kSome, those that completion offers
};

struct ParsedCommandLine {
  bool help = false;
  std::map<std::string, std::vector<std::string>> values;  // by option, in order
  std::vector<std::string> words;

  bool Has(const std::string& option) const { return values.contains(option); }
  // The last one given; nullopt when absent. "" when the value was left out.
  std::optional<std::string> Value(const std::string& option) const;
};

// `arguments` without the command's own name. kInvalid: an option that there
// is not (with the nearest one), that lacks its value or must not have one, or a
// word where none is expected.
Result<ParsedCommandLine> ParseArguments(const CommandSpec& spec, const std::vector<std::string>& arguments);

std::string HelpText(const CommandSpec& spec);

}  // namespace gpumux::cli
