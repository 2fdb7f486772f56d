// SPDX-License-Identifier: Apache-2.0
//
// What a GPU promises to whoever runs on it, in words for a team's documentation.
#include <fmt/format.h>
#include <time.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/promise_text.h"
#include "cli/terminal.h"
#include "core/context_cost.h"
#include "gpu/nvml_instances.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

constexpr const char* kExample = "write for example gpumux promise --lang ja 0";

struct PromiseOptions {
  std::string gpu;  // empty: all
  std::optional<core::Mode> mode;
  Language language = Language::kEnglish;
  bool json = false;
};

Result<PromiseOptions> Judge(const ParsedCommandLine& line) {
  PromiseOptions options;
  options.json = line.Has("--json");
  options.language = LanguageOf(std::getenv("LC_ALL"), std::getenv("LC_MESSAGES"), std::getenv("LANG"));
  if (line.words.size() > 1) return Fail(Code::kInvalid, "too many words", kExample);
  if (!line.words.empty()) options.gpu = line.words[0];
  if (!line.words.empty() && options.gpu.empty()) return Fail(Code::kInvalid, "the GPU is empty", kExample);
  if (const auto lang = line.Value("--lang")) {
    if (*lang != "en" && *lang != "ja")
      return Fail(Code::kInvalid, fmt::format("--lang: '{}' is neither en nor ja", Plain(*lang, 40)),
                  kExample);
    options.language = *lang == "ja" ? Language::kJapanese : Language::kEnglish;
  }
  if (const auto mode = line.Value("--mode")) {
    options.mode = core::FindMode(*mode);
    if (!options.mode)
      return Fail(Code::kInvalid, fmt::format("--mode: '{}' is no mode", Plain(*mode, 40)),
                  "write for example gpumux promise --mode turns");
  }
  return options;
}

bool IsWanted(const gpu::Device& device, const std::string& wanted) {
  return wanted.empty() || device.index.Label() == wanted ||
         (wanted.size() > 4 && device.uuid.ToString().starts_with(wanted));
}

// Without a daemon nobody has a promise: all that is used is held outside gpumux.
Result<PromiseGpu> FromNvml(gpu::Nvml& nvml, const gpu::Device& device) {
  PromiseGpu gpu;
  gpu.device = device;
  gpu.driver_version = nvml.DriverVersion();
  const auto memory = nvml.Memory(device.uuid);
  if (!memory) return tl::unexpected(memory.error());
  gpu.total_bytes = memory->total_bytes;
  gpu.reserve_bytes = memory->reserved_bytes + core::ContextCostOf(device.name).first_share_bytes;
  gpu.outside_bytes = memory->used_bytes;
  gpu.compute_mode = nvml.Mode(device.uuid).value_or(gpu::ComputeMode::kUnknown);
  gpu.mig = nvml.IsPartitioned(device.uuid);
  gpu.no_mode_because = "no daemon runs";
  return gpu;
}

// The daemon knows what of the use is its tenants'. `status`: the element of its `gpus`.
void AddFromDaemon(const Json& status, PromiseGpu& gpu) {
  const auto bytes = [&](const char* key) -> std::optional<uint64_t> {
    const Json& value = At(status, key);
    return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
  };
  const auto unmanaged = bytes("mem_unmanaged_bytes"), unexplained = bytes("mem_unexplained_bytes");
  if (unmanaged && unexplained) gpu.outside_bytes = *unmanaged + *unexplained;
  gpu.mode = core::FindMode(TextAt(status, "mode"));
  gpu.no_mode_because = "it has no tenant: the next one brings its mode";
}

Result<std::vector<PromiseGpu>> ReadGpus(const Endpoints& endpoints, const std::string& wanted) {
  const auto nvml = gpu::OpenNvmlWithInstances(endpoints.source);
  if (!nvml) return tl::unexpected(nvml.error());
  Json status;
  if (const auto client = ApiClient::Connect(endpoints)) {
    const auto body = client->Get("/v1/status");
    if (!body) return tl::unexpected(body.error());
    status = At(Json::parse(*body, nullptr, false), "data");
  }
  std::vector<PromiseGpu> gpus;
  for (const gpu::Device& device : (*nvml)->Devices()) {
    if (!IsWanted(device, wanted)) continue;
    auto gpu = FromNvml(**nvml, device);
    if (!gpu) return tl::unexpected(gpu.error());
    const Json& known = At(status, "gpus");
    for (const Json& each : known.is_array() ? known : Json::array())
      if (TextAt(each, "uuid") == device.uuid.ToString()) AddFromDaemon(each, *gpu);
    gpus.push_back(std::move(*gpu));
  }
  if (!wanted.empty() && gpus.size() != 1)
    return Fail(Code::kNotFound, fmt::format("there is no GPU '{}'", Plain(wanted, 60)), "see gpumux status");
  return gpus;
}

std::string Today() {
  const time_t now = ::time(nullptr);
  tm local{};
  ::localtime_r(&now, &local);
  char date[16];
  ::strftime(date, sizeof date, "%Y-%m-%d", &local);
  return date;
}

}  // namespace

const CommandSpec& PromiseSpec() {
  static const CommandSpec spec{
      .usage = "gpumux promise [options] [GPU]",
      .summary = "Says what each GPU promises in each mode, as text for a team's documentation.",
      .options = {{"--lang",
                   Takes::kValue,
                   "LANG",
                   "en or ja (default: by LC_ALL, LC_MESSAGES or LANG)",
                   {"en", "ja"}},
                  {"--mode",
                   Takes::kValue,
                   "MODE",
                   "this mode alone: exclusive, timeslice, turns, mps or mig",
                   {"exclusive", "timeslice", "turns", "mps", "mig"}},
                  {"--json", Takes::kNothing, "", "one JSON object (schema gpumux.promise/1)"}},
      .footer =
          "Memory, compute, isolation, what may happen, and the sizes of equal tenants that fit, as "
          "Markdown. "
          "GPU is an index or a UUID. What is not true of a GPU now is not said: a mode that its settings "
          "forbid has the reason instead. Needs no daemon.\n\n"
          "Examples:\n  gpumux promise > docs/gpu.md\n  gpumux promise --lang ja --mode turns 0\n",
      .words = CommandSpec::Words::kSome};
  return spec;
}

int PromiseMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(PromiseSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(PromiseSpec())) ? 0 : 1;
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), line->Has("--json"));
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), options->json);
  const auto gpus = ReadGpus(*endpoints, options->gpu);
  if (!gpus) return Report(gpus.error(), options->json);
  const bool simulated = endpoints->source.simulated;
  Json list = Json::array();
  std::string text;
  for (const PromiseGpu& gpu : *gpus) {
    list.push_back(PromiseJson(gpu, options->mode, options->language));
    text += RenderPromise(list.back(), simulated, GPUMUX_VERSION, Today(), options->language);
  }
  if (!options->json) return Print(text) ? 0 : 1;
  const Json data{{"version", GPUMUX_VERSION},
                  {"lang", options->language == Language::kJapanese ? "ja" : "en"},
                  {"gpus", std::move(list)}};
  return Print(Envelope("promise", simulated, data) + "\n") ? 0 : 1;
}

}  // namespace gpumux::cli
