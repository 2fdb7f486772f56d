// SPDX-License-Identifier: Apache-2.0
#include "cli/completion_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;
using Words = CommandSpec::Words;

// bash splits words at '=' and ':', so that --mode=auto is three of them. They
// are put together again, and a reply is only what stands behind the last of those.
constexpr const char* kBashHead = R"bash(# bash completion of gpumux: source <(gpumux completion bash)

# Sets `words` (whole ones, the last is that under the cursor) and `starts` (where each begins in COMP_WORDS).
_gpumux_whole_words() {
  local i glue=0
  words=() starts=()
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    if ((i > 1)) && { ((glue)) || [[ ${COMP_WORDS[i]} == [=:]* ]]; }; then
      words[${#words[@]}-1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}") starts+=("$i")
    fi
    glue=0
    [[ ${COMP_WORDS[i]} != *[=:] ]] || glue=1
  done
}

_gpumux_reply() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2"); }

_gpumux_tenants() { gpumux completion --tenants 2>/dev/null; }

# The program of `run` has its own completion, if it has one.
_gpumux_program() {
  if declare -F _comp_command_offset >/dev/null; then
    _comp_command_offset "$1"
  elif declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif (($1 == COMP_CWORD)); then
    mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
  else
    compopt -o default 2>/dev/null
  fi
}

_gpumux() {
  local words starts last current command options valued='' kind='' choices='' i
  COMPREPLY=()
  _gpumux_whole_words
  last=$((${#words[@]} - 1))
  current=${words[last]}
  if ((last <= 1)); then
)bash";

constexpr const char* kBashTail = R"bash(    *) return ;;
  esac
  for ((i = 2; i < last; ++i)); do
    case ${words[i]} in
      --)
        [[ $kind == program ]] || continue
        _gpumux_program "${starts[i + 1]}"
        return
        ;;
      -*=*) ;;
      -*)
        [[ $valued != *" ${words[i]} "* ]] || {
          ((i + 1 < last)) || {
            _gpumux_reply "$(_gpumux_values "$command" "${words[i]}")" "$current"
            return
          }
          i=$((i + 1))
        } ;;
      *)
        [[ $kind == program ]] || continue
        _gpumux_program "${starts[i]}"
        return
        ;;
    esac
  done
  case $current in
    -*=*:*) ;;
    -*=*) _gpumux_reply "$(_gpumux_values "$command" "${current%%=*}")" "${current#*=}" ;;
    -*) _gpumux_reply "$options" "$current" ;;
    *)
      case $kind in
        program) _gpumux_program "${starts[last]}" ;;
        tenant) _gpumux_reply "$(_gpumux_tenants)" "$current" ;;
        *) _gpumux_reply "$choices" "$current" ;;
      esac
      ;;
  esac
}

complete -F _gpumux gpumux
)bash";

std::string KindOf(const CommandSpec& spec) {
  if (spec.words == Words::kProgram) return "program";
  return spec.words == Words::kTenant ? "tenant" : "";
}

std::string BashCommand(const Command& command) {
  const CommandSpec& spec = command.spec();
  std::string options, valued;
  for (const OptionSpec& option : spec.options) {
    if (option.hidden) continue;
    options += option.name + " ";
    if (option.takes == Takes::kValue) valued += " " + option.name;
  }
  return fmt::format("    {})\n      options='{}--help' valued='{}' kind='{}' choices='{}'\n      ;;\n",
                     command.name, options, valued.empty() ? "" : valued + " ", KindOf(spec),
                     fmt::join(spec.choices, " "));
}

std::string BashValues(std::span<const Command> commands) {
  std::string out = "# What an option of a command may be.\n_gpumux_values() {\n  case $1$2 in\n";
  for (const Command& command : commands) {
    for (const OptionSpec& option : command.spec().options) {
      if (!option.values.empty())
        out +=
            fmt::format("    {}{}) echo '{}' ;;\n", command.name, option.name, fmt::join(option.values, " "));
    }
  }
  return out + "  esac\n}\n\n";
}

// Inside of '...' of a script, and of _arguments' "[...]" and ":...:".
std::string ZshText(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string ZshOption(const OptionSpec& option) {
  const bool repeats = option.type == "K=V";
  std::string out = fmt::format("'{}{}", repeats ? "*" : "", option.name);
  if (option.takes == Takes::kValue) out += "=";
  if (option.takes == Takes::kOptionalValue) out += "=-";
  out += "[" + ZshText(option.help) + "]";
  if (option.takes != Takes::kNothing) {
    out += fmt::format("{}{}:", option.takes == Takes::kOptionalValue ? "::" : ":", ZshText(option.type));
    out += option.values.empty() ? " " : fmt::format("({})", fmt::join(option.values, " "));
  }
  return out + "'";
}

std::string ZshWords(const CommandSpec& spec) {
  if (spec.words == Words::kProgram) return "'*::program:_gpumux_program'";
  if (spec.words == Words::kTenant) return "'1:tenant:_gpumux_tenants'";
  if (!spec.choices.empty()) return fmt::format("'1:word:({})'", fmt::join(spec.choices, " "));
  return "";
}

std::string ZshCommand(const Command& command) {
  const CommandSpec& spec = command.spec();
  // The program's options are not ours: -A stops at the first word.
  std::string out = fmt::format("    {})\n      _arguments {}", command.name,
                                spec.words == Words::kProgram ? "-A '-*' " : "");
  out += "'(- *)'{-h,--help}'[help for this command]'";
  for (const OptionSpec& option : spec.options) {
    if (!option.hidden) out += " \\\n        " + ZshOption(option);
  }
  const std::string words = ZshWords(spec);
  if (!words.empty()) out += " \\\n        " + words;
  return out + "\n      ;;\n";
}

}  // namespace

std::string BashCompletion(std::span<const Command> commands) {
  std::string names;
  for (const Command& command : commands) names += std::string(command.name) + " ";
  std::string out = kBashHead;
  out += fmt::format("    _gpumux_reply '{}--help --version' \"$current\"\n    return\n  fi\n", names);
  out += "  command=${words[1]}\n  case $command in\n";
  for (const Command& command : commands) out += BashCommand(command);
  out += kBashTail;
  const size_t at = out.find("_gpumux() {\n");
  return out.insert(at, BashValues(commands));
}

std::string ZshCompletion(std::span<const Command> commands) {
  std::string out =
      "#compdef gpumux\n# zsh completion of gpumux: gpumux completion zsh > DIRECTORY_OF_FPATH/_gpumux\n\n"
      "_gpumux_tenants() {\n"
      "  local -a tenants\n"
      "  tenants=(${(f)\"$(gpumux completion --tenants 2>/dev/null)\"})\n"
      "  compadd -a tenants\n}\n\n"
      "_gpumux_program() { _normal }\n\n"
      "_gpumux_commands() {\n  local -a commands\n  commands=(\n";
  for (const Command& command : commands)
    out += fmt::format("    '{}:{}'\n", command.name, ZshText(command.summary));
  out +=
      "  )\n  _describe command commands\n}\n\n"
      "_gpumux() {\n"
      "  local context state state_descr line\n"
      "  typeset -A opt_args\n"
      "  _arguments -C '(- *)'{-h,--help}'[help]' '(- *)--version[versions]' \\\n"
      "    '1:command:_gpumux_commands' '*::argument:->argument' && return\n"
      "  [[ $state == argument ]] || return\n"
      "  case $words[1] in\n";
  for (const Command& command : commands) out += ZshCommand(command);
  out +=
      "  esac\n}\n\n"
      "if [[ $funcstack[1] == _gpumux ]]; then\n  _gpumux \"$@\"\nelse\n  compdef _gpumux gpumux\nfi\n";
  return out;
}

}  // namespace gpumux::cli
