// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/mig/commands.h"
#include "cli/mig/machine.h"
#include "cli/mig/text.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using gpu::MigModel;
using gpu::MigProfile;
using Json = nlohmann::json;

constexpr const char* kUnknown = "no document says it";

template <typename T>
void Set(Json& object, const char* key, const std::optional<T>& value) {
  if (value) {
    object[key] = *value;
  } else {
    object[key] = nullptr;
    object[std::string(key) + "_reason"] = kUnknown;
  }
}

Json Inferred(const MigProfile& profile) {
  Json fields = Json::array();
  const std::pair<unsigned, const char*> names[] = {{gpu::kInferredId, "profile_id"},
                                                    {gpu::kInferredSms, "sms"},
                                                    {gpu::kInferredMemory, "mem_bytes"},
                                                    {gpu::kInferredPlacements, "starts"},
                                                    {gpu::kInferredEngines, "engines"}};
  for (const auto& [bit, name] : names) {
    if (profile.inferred & bit) fields.push_back(name);
  }
  return fields;
}

Json Sources(const MigProfile& profile) {
  Json sources = Json::array();
  for (const gpu::MigSource& source : gpu::MigSources()) {
    const std::string padded = " " + profile.sources + " ";
    if (padded.find(fmt::format(" {} ", source.key)) != std::string::npos) sources.push_back(source.text);
  }
  return sources;
}

Json ProfileJson(const MigModel& model, const MigProfile& profile) {
  Json out{{"profile", profile.name},
           {"compute_slices", profile.compute_slices},
           {"max_instances", profile.max_instances},
           {"attribute", gpu::MigAttributeSuffix(profile.attribute)},
           {"inferred", Inferred(profile)}};
  Set(out, "profile_id", profile.id);
  Set(out, "nvml_profile", profile.nvml_profile);
  Set(out, "memory_slices", profile.memory_slices);
  Set(out, "starts", profile.starts.empty() ? std::nullopt : std::optional(profile.starts));
  Set(out, "sms", profile.sms);
  Set(out, "mem_bytes", profile.bytes);
  std::optional<Json> engines;
  if (profile.engines) {
    const gpu::MigEngines& e = *profile.engines;
    engines =
        Json{{"copy", e.copy}, {"nvdec", e.nvdec}, {"nvenc", e.nvenc}, {"jpeg", e.jpeg}, {"ofa", e.ofa}};
  }
  Set(out, "engines", engines);
  if (!model.from_device) {
    out["confidence"] = gpu::Name(profile.confidence);
    out["sources"] = Sources(profile);
  }
  return out;
}

Json ModelJson(const MigModel& model) {
  Json out{{"model", model.key},
           {"name", model.name},
           {"architecture", model.architecture},
           {"from_device", model.from_device},
           {"compute_slices", model.compute_slices},
           {"max_instances", model.max_instances},
           {"note", model.note},
           {"profiles", Json::array()}};
  Set(out, "memory_slices", model.memory_slices);
  Set(out, "whole_sms", model.whole_sms);
  Set(out, "mig_sms", model.mig_sms);
  Set(out, "min_driver", model.min_driver.empty() ? std::nullopt : std::optional(model.min_driver));
  Set(out, "enable_needs_reset", model.enable.needs_reset);
  Set(out, "mode_survives_reboot", model.enable.survives_reboot);
  for (const MigProfile& profile : model.profiles) out["profiles"].push_back(ProfileJson(model, profile));
  return out;
}

// Each once, in the order of the GPUs.
std::vector<const MigModel*> Models(const MigGpus& gpus) {
  std::vector<const MigModel*> models;
  for (const auto& gpu : gpus.gpus) {
    if (std::ranges::count(models, gpu.model) == 0) models.push_back(gpu.model);
  }
  return models;
}

// Without --gpu and without a GPU that has MIG, the whole table.
bool WholeTable(const ParsedCommandLine& line, const Result<MigGpus>& gpus) {
  return !gpus && !line.Has("--gpu") &&
         (gpus.error().code == Code::kUnsupported || gpus.error().code == Code::kUnavailable);
}

}  // namespace

int MigProfiles(const ParsedCommandLine& line) {
  const bool json = line.Has("--json");
  const auto gpus = MigGpusOf(line);
  const bool whole = WholeTable(line, gpus);
  if (!gpus && !whole) return Report(gpus.error(), json);
  std::vector<const MigModel*> models;
  if (gpus) models = Models(*gpus);
  if (json) {
    if (whole) {
      for (const MigModel& model : gpu::MigModels()) models.push_back(&model);
    }
    Json list = Json::array();
    for (const MigModel* model : models) list.push_back(ModelJson(*model));
    return Print(Envelope("mig-profiles", gpus && gpus->simulated, {{"gpus", std::move(list)}}) + "\n") ? 0
                                                                                                        : 1;
  }
  const Terminal terminal = TerminalOf(STDOUT_FILENO);
  std::string out;
  if (whole) {
    Say(gpus.error().message);
    out = MigModelsText(terminal);
  }
  for (const MigModel* model : models) out += (out.empty() ? "" : "\n") + MigProfilesText(*model, terminal);
  if (gpus) out += gpus->note;
  return Print(out) ? 0 : 1;
}

}  // namespace gpumux::cli
