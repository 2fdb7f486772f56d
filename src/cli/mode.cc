// SPDX-License-Identifier: Apache-2.0
//
// How each GPU is shared and why, and how to change that while its tenants run.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/status_local.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

constexpr const char* kExample = "write for example gpumux mode 0 turns";

struct ModeOptions {
  std::string gpu;   // empty: all
  std::string mode;  // empty: shown
  bool json = false;
};

Result<ModeOptions> Judge(const ParsedCommandLine& line) {
  ModeOptions options;
  options.json = line.Has("--json");
  if (line.words.size() > 2) return Fail(Code::kInvalid, "too many words", kExample);
  if (!line.words.empty()) options.gpu = line.words[0];
  if (line.words.size() == 2) options.mode = line.words[1];
  if (!line.words.empty() && options.gpu.empty()) return Fail(Code::kInvalid, "the GPU is empty", kExample);
  const bool known = options.mode.empty() || options.mode == "timeslice" || options.mode == "turns" ||
                     options.mode == "mps" || options.mode == "exclusive" || options.mode == "mig";
  if (!known) return Fail(Code::kInvalid, fmt::format("'{}' is no mode", Plain(options.mode, 40)), kExample);
  return options;
}

bool IsGpu(const Json& gpu, const std::string& wanted) {
  if (GpuLabel(gpu) == wanted) return true;
  return wanted.size() > 4 && TextAt(gpu, "uuid").starts_with(wanted);
}

bool IsOn(const Json& tenant, const std::string& uuid) {
  const Json& gpus = At(tenant, "gpus");
  return gpus.is_array() &&
         std::any_of(gpus.begin(), gpus.end(), [&](const Json& gpu) { return TextAt(gpu, "uuid") == uuid; });
}

// Of a status: the GPUs with their modes, and who is on them.
Json ModesOf(const Json& status, const std::string& gpu_wanted) {
  Json out = Json::array();
  const Json& gpus = At(At(status, "data"), "gpus");
  const Json& tenants = At(At(status, "data"), "tenants");
  if (!gpus.is_array()) return out;
  for (const Json& gpu : gpus) {
    if (!gpu_wanted.empty() && !IsGpu(gpu, gpu_wanted)) continue;
    Json shown{{"uuid", At(gpu, "uuid")}, {"index", At(gpu, "index")}, {"label", GpuLabel(gpu)},
               {"name", At(gpu, "name")}, {"mode", At(gpu, "mode")},   {"tenants", Json::array()}};
    if (shown["mode"].is_null()) shown["mode_reason"] = "it has no tenant: the next one brings its mode";
    for (const Json& tenant : tenants.is_array() ? tenants : Json::array()) {
      if (!IsOn(tenant, TextAt(gpu, "uuid"))) continue;
      shown["tenants"].push_back({{"id", At(tenant, "id")},
                                  {"name", At(tenant, "name")},
                                  {"mode_reason", At(tenant, "mode_reason")}});
    }
    out.push_back(std::move(shown));
  }
  return out;
}

std::string Render(const Json& gpus) {
  std::string out;
  for (const Json& gpu : gpus) {
    out += fmt::format("GPU {} ({}): {}\n", GpuLabel(gpu), TextAt(gpu, "name", 60),
                       At(gpu, "mode").is_string() ? TextAt(gpu, "mode") : TextAt(gpu, "mode_reason", 200));
    for (const Json& tenant : gpu["tenants"])
      out += fmt::format("  {} ({}): {}\n", TextAt(tenant, "name", 64), TextAt(tenant, "id"),
                         TextAt(tenant, "mode_reason", 300));
  }
  return out;
}

Result<Json> ReadModes(const ApiClient* client, const gpu::GpuSource& source, const std::string& gpu) {
  const auto body = client ? client->Get("/v1/status") : StatusFromNvml(source);
  if (!body) return tl::unexpected(body.error());
  Json gpus = ModesOf(Json::parse(*body, nullptr, false), gpu);
  if (!gpu.empty() && gpus.size() != 1)
    return Fail(Code::kNotFound, fmt::format("there is no GPU '{}'", Plain(gpu, 60)), "see gpumux status");
  return gpus;
}

}  // namespace

const CommandSpec& ModeSpec() {
  static const CommandSpec spec{
      .usage = "gpumux mode [options] [GPU [MODE]]",
      .summary = "Shows how each GPU is shared and why, or changes it while its tenants run.",
      .options = {{"--json", Takes::kNothing, "", "one JSON object (schema gpumux.mode/1)"}},
      .footer =
          "GPU is an index or a UUID. Between timeslice and turns a GPU changes at once, if no tenant on it "
          "was "
          "started for another mode; to and from mps and exclusive only while it has no tenants. A tenant of "
          "several GPUs takes all of them along.\n\n"
          "Examples:\n  gpumux mode\n  gpumux mode 0 turns\n",
      .words = CommandSpec::Words::kSome,
      .choices = {"timeslice", "turns"}};
  return spec;
}

int ModeMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(ModeSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(ModeSpec())) ? 0 : 1;
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), line->Has("--json"));
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), options->json);
  const auto client = ApiClient::Connect(*endpoints);
  const bool changes = !options->mode.empty();
  if (!client && changes) return Report(client.error(), options->json);
  auto gpus = ReadModes(client ? &*client : nullptr, endpoints->source, options->gpu);
  if (!gpus) return Report(gpus.error(), options->json);
  if (changes) {
    const auto done = client->Post("/v1/gpus/" + PathPart(TextAt(gpus->front(), "uuid")) + "/mode",
                                   Json{{"mode", options->mode}}.dump());
    if (!done) return Report(done.error(), options->json);
    gpus = ReadModes(&*client, endpoints->source, options->gpu);
    if (!gpus) return Report(gpus.error(), options->json);
  }
  if (options->json)
    return Print(Envelope("mode", endpoints->source.simulated, {{"gpus", *gpus}}) + "\n") ? 0 : 1;
  return Print(Render(*gpus)) ? 0 : 1;
}

}  // namespace gpumux::cli
