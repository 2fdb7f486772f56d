// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/status_local.h"
#include "cli/tenant_view.h"
#include "cli/terminal.h"

namespace gpumux::cli {
const CommandSpec& StatusSpec() {
  static const CommandSpec spec{
      .usage = "gpumux status [--json]",
      .summary = "Shows every GPU with what is promised and used, and every tenant.",
      .options = {{"--json", OptionSpec::Takes::kNothing, "", "one JSON object (schema gpumux.status/1)"}},
      .footer =
          "Memory of tenants includes their contexts. UNMANAGED is held by programs that run outside "
          "gpumux.\n"
          "A dash means unknown. Without a daemon the figures are NVML's alone.\n\n"
          "Examples:\n  gpumux status\n  gpumux status --json | jq '.data.gpus[].mem_promisable_bytes'\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int StatusMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(StatusSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(StatusSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), json);
  const auto client = ApiClient::Connect(*endpoints);
  if (!client && !json) Say(client.error().message + ": these figures are NVML's alone");
  const auto body = client ? client->Get("/v1/status") : StatusFromNvml(endpoints->source);
  if (!body) return Report(body.error(), json);
  if (json) return Print(*body) ? 0 : 1;
  const auto text = RenderStatus(*body, TerminalOf(STDOUT_FILENO));
  if (!text) return Report(text.error());
  return Print(*text) ? 0 : 1;
}

}  // namespace gpumux::cli
