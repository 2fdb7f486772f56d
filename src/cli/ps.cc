// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/tenant_view.h"
#include "cli/terminal.h"

namespace gpumux::cli {
const CommandSpec& PsSpec() {
  static const CommandSpec spec{
      .usage = "gpumux ps [--all] [--json]",
      .summary = "Shows the processes of every tenant that use a GPU.",
      .options = {{"--all", OptionSpec::Takes::kNothing, "", "the last tenants that ended, too"},
                  {"--json", OptionSpec::Takes::kNothing, "", "one JSON object (schema gpumux.tenants/1)"}},
      .footer =
          "MEM is what the process was charged: its allocations and its contexts. GUARD \"in force\" means "
          "that the\n"
          "process's allocations are held to the tenant's limit.\n\n"
          "Examples:\n  gpumux ps\n  gpumux ps --all --json | jq '.data.tenants[] | {name, ended}'\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int PsMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(PsSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(PsSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), json);
  const auto client = ApiClient::Connect(*endpoints);
  if (!client) return Report(client.error(), json);
  const auto body = client->Get(line->Has("--all") ? "/v1/tenants?all=1" : "/v1/tenants");
  if (!body) return Report(body.error(), json);
  if (json) return Print(*body) ? 0 : 1;
  const auto text = RenderProcesses(*body, TerminalOf(STDOUT_FILENO));
  if (!text) return Report(text.error());
  return Print(*text) ? 0 : 1;
}

}  // namespace gpumux::cli
