// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/terminal.h"
#include "gpumux/abi/session.h"

namespace gpumux::cli {
const CommandSpec& VersionSpec() {
  static const CommandSpec spec{
      .usage = "gpumux version [--json]",
      .summary = "Shows the versions of this command, of the daemon that answers it, and of the GPU driver.",
      .options = {{"--json", OptionSpec::Takes::kNothing, "", "one JSON object (schema gpumux.version/1)"}},
      .footer = "Examples:\n  gpumux version\n  gpumux version --json | jq -r .data.version\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int VersionMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(VersionSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(VersionSpec())) ? 0 : 1;
  nlohmann::json data{{"version", GPUMUX_VERSION},
                      {"session_version", GPUMUX_SESSION_VERSION},
                      {"pages_version", GPUMUX_PAGES_VERSION},
                      {"daemon", nullptr}};
  // The command's own version is known whatever else fails.
  const auto endpoints = FindEndpoints();
  bool simulated = false;
  if (!endpoints) {
    data["daemon_reason"] = endpoints.error().message;
  } else {
    simulated = endpoints->source.simulated;
    const auto client = ApiClient::Connect(*endpoints);
    const auto body =
        client ? client->Get("/v1/version") : Result<std::string>(tl::unexpected(client.error()));
    if (body) {
      data["daemon"] = At(nlohmann::json::parse(*body, nullptr, false), "data");
    } else {
      data["daemon_reason"] = body.error().message;
    }
  }
  if (line->Has("--json")) return Print(Envelope("version", simulated, data) + "\n") ? 0 : 1;
  std::string out = fmt::format("gpumux {}\n", GPUMUX_VERSION);
  if (data["daemon"].is_object()) {
    out +=
        fmt::format("gpumuxd {}, driver {}{}\n", TextAt(data["daemon"], "version"),
                    TextAt(data["daemon"], "driver_version"), simulated ? " (software GPU, simulated)" : "");
  } else {
    out += fmt::format("gpumuxd –: {}\n", TextAt(data, "daemon_reason"));
  }
  return Print(out) ? 0 : 1;
}

}  // namespace gpumux::cli
