// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"

#include <fmt/format.h>

#include "base/nearest.h"
#include "cli/run_options.h"
#include "cli/run_report.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

int HelpMain(const std::vector<std::string>& arguments);

const CommandSpec& HelpSpec();

constexpr Command kCommands[] = {
    {"run", "start a program with a promise of GPU memory", RunMain, RunSpec},
    {"status", "GPUs and tenants at a glance", StatusMain, StatusSpec},
    {"top", "GPUs, who held them when, and tenants, again and again", TopMain, TopSpec},
    {"ps", "the processes of every tenant", PsMain, PsSpec},
    {"explain", "a tenant's promise, and what enforces each part", ExplainMain, ExplainSpec},
    {"events", "what happened, and what happens", EventsMain, EventsSpec},
    {"history", "tenants that have ended: how, when, how long they took and waited", HistoryMain,
     HistorySpec},
    {"set", "change the promise of a tenant that runs", SetMain, SetSpec},
    {"stop", "end a tenant", StopMain, StopSpec},
    {"reserve", "keep room for a program that runs outside gpumux", ReserveMain, ReserveSpec},
    {"mode", "how each GPU is shared, and why", ModeMain, ModeSpec},
    {"promise", "what each GPU promises, as text for your documentation", PromiseMain, PromiseSpec},
    {"mps", "NVIDIA MPS as gpumux runs it", MpsMain, MpsSpec},
    {"mig", "NVIDIA MIG: which instances a GPU can have, and which to make", MigMain, MigSpec},
    {"kernelspec", "each notebook kernel of Jupyter as a tenant", KernelspecMain, KernelspecSpec},
    {"config", "what is configured, and whether it is right", ConfigMain, ConfigSpec},
    {"doctor", "find what keeps it from working, and what to do", DoctorMain, DoctorSpec},
    {"completion", "completion for bash or zsh", CompletionMain, CompletionSpec},
    {"version", "versions of command and daemon", VersionMain, VersionSpec},
    {"help", "help for a command", HelpMain, HelpSpec},
};

// Commands of the product that later versions bring.
constexpr const char* kLater[] = {"profile", "advise", "bench", "cdi", "docker", "podman", "compose"};

const Command* Find(const std::string& name) {
  for (const Command& command : kCommands) {
    if (name == command.name) return &command;
  }
  return nullptr;
}

std::string ShortHelp() {
  std::string out =
      "gpumux: one GPU, many programs, every promise kept\n\nUsage: gpumux COMMAND [options]\n\nCommands:\n";
  for (const Command& command : kCommands) out += fmt::format("  {:<11} {}\n", command.name, command.summary);
  out +=
      "\nExamples:\n"
      "  gpumux run --mem 40GiB -- python3 serve.py     guarantee 40 GiB, and keep it within them\n"
      "  gpumux run --mem 60GiB -- python3 train.py     a second program on the same GPU\n"
      "  gpumux status                                  who was promised what, and what they use\n"
      "  gpumux stop train                              end a tenant\n"
      "\n`gpumux help COMMAND` tells more.\n";
  return out;
}

tl::unexpected<Error> Unknown(const std::string& name) {
  for (const char* later : kLater) {
    if (name == later)
      return Fail(Code::kUnsupported, fmt::format("the command {} is not in this version", name));
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const auto nearest = Nearest(name, names);
  return Fail(Code::kInvalid, fmt::format("there is no command '{}'", Plain(name, 40)),
              nearest ? fmt::format("did you mean {}?", *nearest) : "see gpumux help");
}

// Only for completion: help has no options.
const CommandSpec& HelpSpec() {
  static const CommandSpec spec = [] {
    CommandSpec help;
    help.usage = "gpumux help [COMMAND]";
    help.words = CommandSpec::Words::kSome;
    for (const Command& command : kCommands) help.choices.emplace_back(command.name);
    return help;
  }();
  return spec;
}

int HelpMain(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "-h" || arguments[0] == "--help")
    return Print(ShortHelp()) ? 0 : 1;
  const Command* command = Find(arguments[0]);
  if (!command) return Report(Unknown(arguments[0]).value());
  if (command->main == HelpMain) return Print(ShortHelp()) ? 0 : 1;
  return command->main({"--help"});
}

}  // namespace

std::span<const Command> AllCommands() { return kCommands; }

int Report(const Error& error, bool json) {
  if (json) {
    PrintError(ErrorJson(std::string(Name(error.code)), error.message, error.hint) + "\n");
  } else {
    Say(error.ToString());
  }
  return ExitStatus(error.code);
}

int RunCommand(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return HelpMain({});
  const std::string& name = arguments[0];
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (name == "-h" || name == "--help") return HelpMain({});
  if (name == "--version") return VersionMain(rest);
  const Command* command = Find(name);
  if (!command) return Report(Unknown(name).value());
  return command->main(rest);
}

}  // namespace gpumux::cli
