// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/units.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/signal_name.h"
#include "cli/tenant_lookup.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;
constexpr int kDefaultSignal = 15;
constexpr std::chrono::milliseconds kDefaultGrace = std::chrono::seconds(10);
constexpr std::chrono::milliseconds kMaxGrace = std::chrono::hours(1);

struct StopOptions {
  std::string tenant;
  int signal = kDefaultSignal;
  std::chrono::milliseconds grace = kDefaultGrace;
};

Result<StopOptions> Judge(const ParsedCommandLine& line) {
  StopOptions options;
  if (line.words.size() != 1 || line.words[0].empty()) {
    return Fail(Code::kInvalid, line.words.empty() ? "there is no tenant to stop" : "name exactly one tenant",
                "write for example gpumux stop train");
  }
  options.tenant = line.words[0];
  if (const auto text = line.Value("--signal")) {
    const auto signal = ParseSignal(*text);
    if (!signal) return Fail(Code::kInvalid, "--signal: " + signal.error().message, signal.error().hint);
    options.signal = *signal;
  }
  if (const auto text = line.Value("--grace")) {
    const auto grace = ParseDuration(*text);
    if (!grace) return Fail(Code::kInvalid, "--grace: " + grace.error().message, grace.error().hint);
    if (*grace > kMaxGrace)
      return Fail(Code::kInvalid, fmt::format("--grace '{}': more than an hour", *text),
                  "write for example --grace 30s");
    options.grace = *grace;
  }
  return options;
}

}  // namespace

const CommandSpec& StopSpec() {
  static const CommandSpec spec{
      .usage = "gpumux stop [options] TENANT",
      .summary = "Ends a tenant, named by its id or its name: a signal first, SIGKILL after the grace time.",
      .options = {{"--signal",
                   Takes::kValue,
                   "SIGNAL",
                   "the first signal: TERM (default), INT, 9, ...",
                   {"TERM", "INT", "HUP", "USR1", "USR2", "QUIT", "KILL"}},
                  {"--grace", Takes::kValue, "T", "time until SIGKILL: 10s (default), at most 1h"},
                  {"--json", Takes::kNothing, "", "the daemon's answer as one JSON object"}},
      .footer = "Examples:\n  gpumux stop train\n  gpumux stop --signal INT --grace 60s t-1f2e3d\n",
      .words = CommandSpec::Words::kTenant};
  return spec;
}

int StopMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(StopSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(StopSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), json);
  const auto stopped = ChangeTenant(
      options->tenant, "stop",
      {{"signal", options->signal}, {"grace_seconds", static_cast<double>(options->grace.count()) / 1000}});
  if (!stopped) return Report(stopped.error(), json);
  if (json) return Print(stopped->answer) ? 0 : 1;
  return Print(fmt::format("{} ({}): sent {}; SIGKILL after {}\n", stopped->name, stopped->id,
                           SignalName(options->signal), FormatDuration(options->grace)))
             ? 0
             : 1;
}

}  // namespace gpumux::cli
