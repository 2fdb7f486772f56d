// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/completion_script.h"
#include "cli/tenant_lookup.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

// For the scripts: one word a line. Without a daemon there are no tenants, and
// whoever presses TAB wants no message.
int PrintTenants() {
  const auto endpoints = FindEndpoints();
  if (!endpoints) return ExitStatus(endpoints.error().code);
  const auto client = ApiClient::Connect(*endpoints);
  if (!client) return ExitStatus(client.error().code);
  const auto words = TenantWords(*client);
  if (!words) return ExitStatus(words.error().code);
  std::string out;
  for (const std::string& word : *words) out += word + "\n";
  return Print(out) ? 0 : 1;
}

}  // namespace

const CommandSpec& CompletionSpec() {
  static const CommandSpec spec{
      .usage = "gpumux completion bash|zsh",
      .summary = "Prints a script that completes commands, options, their values and tenants.",
      .options = {{"--tenants", OptionSpec::Takes::kNothing, "", "what the scripts ask for", {}, true}},
      .footer =
          "Examples:\n"
          "  source <(gpumux completion bash)                       in ~/.bashrc\n"
          "  gpumux completion zsh > ~/.zfunc/_gpumux               with ~/.zfunc in fpath\n",
      .words = CommandSpec::Words::kSome,
      .choices = {"bash", "zsh"}};
  return spec;
}

int CompletionMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(CompletionSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(CompletionSpec())) ? 0 : 1;
  if (line->Has("--tenants")) return PrintTenants();
  const char* example = "write gpumux completion bash, or zsh";
  if (line->words.size() != 1) return Report(Fail(Code::kInvalid, "name one shell", example).value());
  if (line->words[0] == "bash") return Print(BashCompletion(AllCommands())) ? 0 : 1;
  if (line->words[0] == "zsh") return Print(ZshCompletion(AllCommands())) ? 0 : 1;
  return Report(
      Fail(Code::kInvalid, fmt::format("there is no completion for '{}'", Plain(line->words[0], 40)), example)
          .value());
}

}  // namespace gpumux::cli
