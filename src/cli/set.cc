// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/set_request.h"
#include "cli/tenant_lookup.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

struct SetOptions {
  std::string tenant;
  Json body = Json::object();
};

Result<SetOptions> Judge(const ParsedCommandLine& line) {
  SetOptions options;
  if (line.words.size() != 1 || line.words[0].empty()) {
    return Fail(Code::kInvalid,
                line.words.empty() ? "there is no tenant to change" : "name exactly one tenant",
                "write for example gpumux set train --mem 40GiB");
  }
  options.tenant = line.words[0];
  if (const auto text = line.Value("--mem")) {
    auto memory = MemoryRequest(*text);
    if (!memory) return tl::unexpected(memory.error());
    options.body = std::move(*memory);
  }
  if (const auto text = line.Value("--time")) {
    const auto time = TimeRequest(*text);
    if (!time) return tl::unexpected(time.error());
    options.body.update(*time);
  }
  if (options.body.empty()) {
    return Fail(Code::kInvalid, "there is nothing to set",
                "write for example gpumux set train --mem 40GiB, or --time 2h");
  }
  if (line.Has("--as-it-frees")) {
    if (!line.Has("--mem")) return Fail(Code::kInvalid, "--as-it-frees goes with --mem");
    options.body["as_it_frees"] = true;
  }
  return options;
}

std::string Sentence(const Json& tenant) {
  std::string text = fmt::format("{} ({}):", TextAt(tenant, "name", 64), TextAt(tenant, "id"));
  const Json& guaranteed = At(tenant, "mem_guaranteed_bytes");
  const Json& limit = At(tenant, "mem_limit_bytes");
  if (guaranteed.is_number_unsigned() && guaranteed != 0)
    text += fmt::format(" {} guaranteed", FormatBytes(guaranteed.get<uint64_t>()));
  else
    text += " no guarantee";
  if (limit.is_number_unsigned() && limit != guaranteed)
    text += fmt::format(", up to {}", FormatBytes(limit.get<uint64_t>()));
  if (const Json& time = At(tenant, "time_limit_seconds"); time.is_number())
    text +=
        fmt::format("; ends after {}", FormatDuration(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                           std::chrono::duration<double>(time.get<double>()))));
  if (At(tenant, "above_limit") == true) {
    const Json& used = At(tenant, "mem_used_bytes");
    text += fmt::format("; it uses {} and gets no more until it is below",
                        used.is_number_unsigned() ? FormatBytes(used.get<uint64_t>()) : "more");
  }
  return text + "\n";
}

}  // namespace

const CommandSpec& SetSpec() {
  static const CommandSpec spec{
      .usage = "gpumux set [options] TENANT",
      .summary = "Changes the promise of a tenant that runs, named by its id or its name.",
      .options = {{"--mem", Takes::kValue, "A[:B]", "on each of its GPUs: guarantee A, limit B (default A)"},
                  {"--as-it-frees", Takes::kNothing, "",
                   "take a limit below what it uses: it gets no more until it is below"},
                  {"--time", Takes::kValue, "T",
                   "an upper bound of the run, from its start: then it is stopped"},
                  {"--json", Takes::kNothing, "", "the tenant as it is then, as one JSON object"}},
      .footer =
          "Examples:\n  gpumux set train --mem 60GiB\n  gpumux set train --mem 20GiB --as-it-frees\n"
          "  gpumux set t-1f2e3d --time 4h\n",
      .words = CommandSpec::Words::kTenant};
  return spec;
}

int SetMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(SetSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(SetSpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), json);
  const auto changed = ChangeTenant(options->tenant, "set", options->body);
  if (!changed) return Report(changed.error(), json);
  if (json) return Print(changed->answer) ? 0 : 1;
  return Print(Sentence(At(Json::parse(changed->answer, nullptr, false), "data"))) ? 0 : 1;
}

}  // namespace gpumux::cli
