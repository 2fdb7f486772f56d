// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/doctor/files.h"
#include "cli/doctor/report.h"
#include "cli/envelope.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

std::vector<std::string> IdsAndGroups() {
  std::vector<std::string> names;
  for (const auto& checks :
       {doctor::MachineChecks(),
        std::vector<doctor::Check>(doctor::ProcessChecks().begin(), doctor::ProcessChecks().end())}) {
    for (const doctor::Check& check : checks) {
      for (const char* name : {check.id, check.group}) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
      }
    }
  }
  return names;
}

Result<pid_t> ParsePid(const std::string& text) {
  const auto number = doctor::NumberAt(text);
  if (!number || *number == 0 || *number > INT32_MAX ||
      text.find_first_not_of("0123456789") != std::string::npos)
    return Fail(Code::kInvalid, fmt::format("--pid: '{}' is no process id", Plain(text, 40)),
                "write for example --pid 4711");
  return static_cast<pid_t>(*number);
}

// The checks that the command line asks for.
Result<std::vector<doctor::Check>> Chosen(const ParsedCommandLine& line) {
  const auto process = doctor::ProcessChecks();
  std::vector<doctor::Check> all = line.Has("--pid") || line.Has("--list")
                                       ? std::vector<doctor::Check>(process.begin(), process.end())
                                       : std::vector<doctor::Check>();
  if (!line.Has("--pid")) {
    const auto machine = doctor::MachineChecks();
    all.insert(all.begin(), machine.begin(), machine.end());
  }
  if (!line.Has("--only")) return all;
  const auto names = IdsAndGroups();
  const std::vector<std::string>& only = line.values.at("--only");
  for (const std::string& name : only) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const auto nearest = Nearest(name, names);
    return Fail(Code::kInvalid, fmt::format("--only: there is no check '{}'", Plain(name, 60)),
                nearest ? fmt::format("did you mean {}?", *nearest) : "see gpumux doctor --list");
  }
  std::erase_if(all, [&](const doctor::Check& check) {
    return std::none_of(only.begin(), only.end(),
                        [&](const std::string& name) { return name == check.id || name == check.group; });
  });
  if (all.empty())
    return Fail(Code::kInvalid, fmt::format("--only: {} is about a process", only.front()),
                "add --pid, for example --pid 4711");
  return all;
}

std::string ListOf(const std::vector<doctor::Check>& checks) {
  Table table;
  for (const char* header : {"ID", "GROUP", "LOOKS AT"}) table.AddColumn(header);
  for (const doctor::Check& check : checks) table.AddRow({{check.id}, {check.group}, {check.looks_at}});
  return table.Render(TerminalOf(1));
}

}  // namespace

const CommandSpec& DoctorSpec() {
  static const CommandSpec spec{
      .usage = "gpumux doctor [options]",
      .summary =
          "Looks for what keeps gpumux, CUDA or one program from working, and says what to do. Changes "
          "nothing.",
      .options =
          {
              {"--pid", OptionSpec::Takes::kValue, "PID",
               "is this process covered by its promise, and by what"},
              {"--only", OptionSpec::Takes::kValue, "ID", "this check or group alone; may be repeated",
               IdsAndGroups()},
              {"--list", OptionSpec::Takes::kNothing, "", "the checks, without running them"},
              {"--strict", OptionSpec::Takes::kNothing, "", "a warning counts as a failure"},
              {"--quiet", OptionSpec::Takes::kNothing, "", "print nothing but what is wrong"},
              {"--json", OptionSpec::Takes::kNothing, "", "one JSON object (schema gpumux.doctor/1)"},
          },
      .footer =
          "Exit status: 0 nothing failed, 1 a check failed (with --strict: or warned), 3 a check could not "
          "look.\n\n"
          "Examples:\n  gpumux doctor\n  gpumux doctor --pid 4711\n"
          "  gpumux doctor --quiet --strict --only gpu && echo ready\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int DoctorMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(DoctorSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(DoctorSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto checks = Chosen(*line);
  if (!checks) return Report(checks.error(), json);
  if (line->Has("--list")) return Print(ListOf(*checks)) ? 0 : 1;
  doctor::Environment environment = doctor::RealEnvironment();
  if (line->Has("--pid")) {
    const auto pid = ParsePid(line->Value("--pid").value_or(""));
    if (!pid) return Report(pid.error(), json);
    environment.pid = *pid;
  }
  std::vector<doctor::Finding> findings;
  for (const doctor::Check& check : *checks) {
    findings.push_back({check, check.run(environment)});
    // Of a process that there is not, there is nothing else to say.
    if (environment.pid && check.id == std::string_view("process-exists") &&
        findings.back().verdict.status == doctor::Status::kError)
      break;
  }
  const bool quiet = line->Has("--quiet");
  const std::string text =
      json ? Envelope("doctor", environment.gpus().simulated(),
                      nlohmann::json::parse(doctor::FindingsJson(findings, environment.pid))) +
                 "\n"
           : doctor::Render(findings, TerminalOf(1), quiet);
  if (!Print(text)) return 1;
  return doctor::ExitStatusOf(findings, line->Has("--strict"));
}

}  // namespace gpumux::cli
