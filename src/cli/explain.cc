// SPDX-License-Identifier: Apache-2.0
#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/explanation.h"
#include "cli/tenant_lookup.h"
#include "cli/terminal.h"

namespace gpumux::cli {

const CommandSpec& ExplainSpec() {
  static const CommandSpec spec{
      .usage = "gpumux explain [--json] TENANT",
      .summary = "Explains what a tenant was promised, what enforces each part, and what may happen to it.",
      .options = {{"--json", OptionSpec::Takes::kNothing, "", "one JSON object (schema gpumux.explain/1)"}},
      .footer =
          "\"proven\": the guard or NVML shows it now. \"unproven\": it should be so, and nothing shows "
          "it.\n\n"
          "Examples:\n  gpumux explain train\n  gpumux explain --json train | jq '.data.parts[]'\n",
      .words = CommandSpec::Words::kTenant};
  return spec;
}

int ExplainMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(ExplainSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(ExplainSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  if (line->words.size() != 1 || line->words[0].empty()) {
    return Report(
        Fail(Code::kInvalid, "name exactly one tenant", "write for example gpumux explain train").value(),
        json);
  }
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), json);
  const auto client = ApiClient::Connect(*endpoints);
  if (!client) return Report(client.error(), json);
  const auto tenant = FindTenant(*client, line->words[0], Among::kEndedToo);
  if (!tenant) return Report(tenant.error(), json);
  const auto body = client->Get("/v1/status");
  if (!body) return Report(body.error(), json);
  const nlohmann::json status = nlohmann::json::parse(*body, nullptr, false);
  const nlohmann::json explanation = Explanation(*tenant, At(status, "data"));
  if (json) return Print(Envelope("explain", At(status, "simulated") == true, explanation) + "\n") ? 0 : 1;
  return Print(RenderExplanation(explanation)) ? 0 : 1;
}

}  // namespace gpumux::cli
