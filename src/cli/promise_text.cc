// SPDX-License-Identifier: Apache-2.0
#include "cli/promise_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/envelope.h"
#include "cli/japanese.h"
#include "core/context_cost.h"
#include "core/mps.h"
#include "modes/sharing_mode.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

// Where the figures in the capability records come from.
constexpr std::string_view kMeasuredOn = "H200";
constexpr unsigned kParts[] = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr unsigned kUsualMpsClients = 48;

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

class Words {
 public:
  explicit Words(Language language) : language_(language) {}

  // What has no Japanese is said in English rather than not at all; a test sees
  // to it that there is none.
  std::string operator()(std::string_view english) const {
    if (language_ == Language::kJapanese) return std::string(Japanese(english).value_or(english));
    return std::string(english);
  }
  template <typename... Values>
  std::string operator()(std::string_view english, const Values&... values) const {
    return fmt::format(fmt::runtime((*this)(english)), values...);
  }

 private:
  Language language_;
};

uint64_t PromisableBytes(const PromiseGpu& gpu, core::Mode mode) {
  const core::ContextCost cost = core::ContextCostOf(gpu.device.name);
  const uint64_t left = Minus(Minus(gpu.total_bytes, gpu.reserve_bytes), gpu.outside_bytes);
  return mode == core::Mode::kMps ? Minus(left, cost.mps_server_bytes) : left;
}

Json MemorySentences(const modes::Capability& mode, const Words& words) {
  Json out = Json::array();
  if (core::Shares(mode.mode)) {
    out.push_back(words("Guaranteed: what --mem promises is there until the program ends. By: {}.",
                        words(mode.memory_guaranteed_by)));
    out.push_back(
        words("Without --mem nothing is guaranteed: the program may use what is promised to nobody."));
  } else {
    out.push_back(
        mode.mode == core::Mode::kMig
            ? words("Guaranteed: all that the instance can promise. By: {}.",
                    words(mode.memory_guaranteed_by))
            : words("Guaranteed: all that the GPU can promise. By: {}.", words(mode.memory_guaranteed_by)));
  }
  out.push_back(words(
      "Limit: what goes beyond it is refused with the driver's ordinary CUDA_ERROR_OUT_OF_MEMORY. By: {}.",
      words(mode.memory_enforced_by)));
  return out;
}

Json ComputeSentences(const modes::Capability& mode, const Words& words) {
  Json out = Json::array();
  out.push_back(words("Promised: {}. By: {}.", words(mode.compute_promise), words(mode.compute_enforced_by)));
  out.push_back(words("--share: {}.", words(mode.share_option)));
  if (!core::Shares(mode.mode)) return out;
  out.push_back(mode.kernels_of_several_tenants_at_once
                    ? words("Kernels of several tenants run at the same time.")
                    : words("Kernels of two tenants never run at the same time."));
  out.push_back(words("Cost of switching: {}.", words(mode.switching_cost)));
  out.push_back(
      words("While a tenant with --priority latency works, kernels of neighbours with --priority best-effort "
            "wait; a kernel that runs already is not ended."));
  return out;
}

Json IsolationSentences(const modes::Capability& mode, const Words& words) {
  Json out = Json::array();
  out.push_back(words("Can a neighbour read my memory? {}.", words(mode.neighbour_reads)));
  if (!mode.undivided.empty()) out.push_back(words("Shared and not divided: {}.", words(mode.undivided)));
  out.push_back(mode.mode == core::Mode::kMig
                    ? words("The GPU keeps the limit, against hostile programs too.")
                    : words("The limit is kept inside the program, for cooperative programs: a hostile one "
                            "can escape it."));
  return out;
}

Json WhatMayHappen(const modes::Capability& mode, const Words& words) {
  Json out = Json::array();
  out.push_back(words("A neighbour's GPU fault: {}.", words(mode.neighbour_fault)));
  if (!mode.after_fault.empty()) out.push_back(words("After it: {}.", words(mode.after_fault)));
  out.push_back(words("A neighbour's death: {}.", words(mode.neighbour_death)));
  out.push_back(words("A neighbour's load: {}.", words(mode.neighbour_load)));
  out.push_back(
      core::Shares(mode.mode)
          ? words("A program that finds no room for its promise waits, or is refused with --no-wait.")
      : mode.mode == core::Mode::kMig
          ? words("A program waits until an instance that holds it has no tenant, or is refused with "
                  "--no-wait.")
          : words("A program waits until the GPU has no tenant, or is refused with --no-wait."));
  out.push_back(words(
      "A program outside gpumux may take memory that was promised: gpumux status shows the promise as AT "
      "RISK then, and whose program it is."));
  return out;
}

Json ModeJson(const PromiseGpu& gpu, core::Mode mode, const Words& words) {
  const auto& sharing = modes::ModeOf(mode);
  const modes::Capability& capability = sharing.capability();
  Json out{{"mode", core::Name(mode)}, {"in_use", gpu.mode == mode}, {"needs_root", capability.needs_root}};
  const Status supported = modes::SupportsOn(mode, {.compute_mode = gpu.compute_mode,
                                                    .instance = gpu.device.instance.has_value(),
                                                    .partitioned = gpu.mig});
  out["possible"] = supported.has_value();
  if (!supported) {
    out["why_not"] = words(supported.error().message);
    out["remedy"] = words(supported.error().hint);
  }
  const bool share = capability.share_min_ratio >= 0;
  out["share_min_ratio"] = share ? Json(capability.share_min_ratio) : Json();
  out["share_max_ratio"] = share ? Json(capability.share_max_ratio) : Json();
  if (!share)
    out["share_min_ratio_reason"] = out["share_max_ratio_reason"] = words(capability.compute_promise);
  out["equal_parts"] = Json::array();
  // Nothing fits where the mode cannot be had.
  for (const EqualPart& part : supported ? EqualParts(gpu, mode) : std::vector<EqualPart>{})
    out["equal_parts"].push_back({{"tenants", part.tenants},
                                  {"mem_bytes", part.mem_bytes},
                                  {"mem_program_bytes", part.program_bytes}});
  out["memory"] = MemorySentences(capability, words);
  out["compute"] = ComputeSentences(capability, words);
  out["isolation"] = IsolationSentences(capability, words);
  out["may_happen"] = WhatMayHappen(capability, words);
  return out;
}

Json Notes(const PromiseGpu& gpu, const Words& words) {
  Json out = Json::array();
  const core::ContextCost cost = core::ContextCostOf(gpu.device.name);
  out.push_back(
      words("Every promise includes the CUDA contexts of its program: {} for each process and GPU{}.",
            FormatBytes(cost.ChargeBytes()),
            cost.measured ? "" : words(" (a safe guess until NVML has shown it)")));
  if (gpu.outside_bytes > 0)
    out.push_back(
        words("Programs outside gpumux hold {} of this GPU now; without them so much more can be promised.",
              FormatBytes(gpu.outside_bytes)));
  if (gpu.device.name.find(kMeasuredOn) == std::string::npos)
    out.push_back(words("Figures were measured on an NVIDIA {}, not on this model.", kMeasuredOn));
  else
    out.push_back(words("Figures were measured on an NVIDIA {}.", kMeasuredOn));
  return out;
}

void AddList(std::string& out, const std::string& title, const Json& sentences) {
  out += fmt::format("**{}**\n\n", title);
  for (const Json& sentence : sentences) out += fmt::format("- {}\n", sentence.get<std::string>());
  out += "\n";
}

std::string PartsTable(const Json& mode, const Words& words) {
  if (mode["equal_parts"].empty()) return words("Nothing fits now.") + "\n\n";
  std::string out =
      words("| Equal tenants that fit | Each with | Of it for the program |") + "\n|---|---|---|\n";
  for (const Json& part : mode["equal_parts"])
    out += fmt::format("| {} | `--mem {:.1f}GiB` | {} |\n", part["tenants"].get<unsigned>(),
                       static_cast<double>(part["mem_bytes"].get<uint64_t>()) / kGiB,
                       FormatBytes(part["mem_program_bytes"].get<uint64_t>()));
  return out + "\n";
}

std::string ModeText(const Json& mode, const Words& words) {
  const auto name = mode["mode"].get<std::string>();
  std::string out = fmt::format("## {}{}\n\n", words("Mode {}", name),
                                mode["in_use"] == true ? words(" (the GPU has it now)") : "");
  if (mode["possible"] != true) {
    out += words("Not possible now: {}. What helps: {}.", mode["why_not"].get<std::string>(),
                 mode["remedy"].get<std::string>());
    return out + "\n\n";
  }
  out += PartsTable(mode, words);
  AddList(out, words("Memory"), mode["memory"]);
  AddList(out, words("Compute"), mode["compute"]);
  AddList(out, words("Isolation"), mode["isolation"]);
  AddList(out, words("What may happen"), mode["may_happen"]);
  return out;
}

}  // namespace

Language LanguageOf(const char* lc_all, const char* lc_messages, const char* lang) {
  for (const char* each : {lc_all, lc_messages, lang}) {
    if (!each || !*each) continue;
    const std::string_view name(each);
    return name == "ja" || name.starts_with("ja_") || name.starts_with("ja.") ? Language::kJapanese
                                                                              : Language::kEnglish;
  }
  return Language::kEnglish;
}

std::vector<EqualPart> EqualParts(const PromiseGpu& gpu, core::Mode mode) {
  constexpr uint64_t kTenth = 10;
  const core::ContextCost cost = core::ContextCostOf(gpu.device.name);
  const unsigned clients = core::MpsClientsOf(gpu.driver_version);
  unsigned most = core::Shares(mode) ? kParts[std::size(kParts) - 1] : 1;
  if (mode == core::Mode::kMps) most = std::min(most, clients > 0 ? clients : kUsualMpsClients);
  std::vector<EqualPart> parts;
  for (const unsigned tenants : kParts) {
    if (tenants > most) break;
    const uint64_t bytes = PromisableBytes(gpu, mode) / tenants;
    // A tenth is not a whole number of bytes: rounded up it would be too much.
    const uint64_t tenths = bytes / kGiB * kTenth + bytes % kGiB * kTenth / kGiB;
    const uint64_t mem = tenths * kGiB / kTenth;
    if (mem < cost.ChargeBytes() + core::kMinimumBeyondContextBytes) break;
    parts.push_back({tenants, mem, mem - cost.ChargeBytes()});
  }
  return parts;
}

Json PromiseJson(const PromiseGpu& gpu, std::optional<core::Mode> only, Language language) {
  const Words words(language);
  Json out{{"uuid", gpu.device.uuid.ToString()},
           {"index", gpu.device.index.gpu},
           {"name", gpu.device.name},
           {"driver_version", gpu.driver_version},
           {"mem_total_bytes", gpu.total_bytes},
           {"mem_promisable_bytes", Minus(Minus(gpu.total_bytes, gpu.reserve_bytes), gpu.outside_bytes)},
           {"mem_unmanaged_bytes", gpu.outside_bytes}};
  const core::ContextCost cost = core::ContextCostOf(gpu.device.name);
  out["context_bytes"] = cost.ChargeBytes();
  out["context_bytes_measured"] = cost.measured;
  out["mode"] = gpu.mode ? Json(core::Name(*gpu.mode)) : Json();
  if (!gpu.mode) out["mode_reason"] = words(gpu.no_mode_because);
  out["modes"] = Json::array();
  for (const core::Mode mode : core::kModes)
    if (!only || *only == mode) out["modes"].push_back(ModeJson(gpu, mode, words));
  out["notes"] = Notes(gpu, words);
  return out;
}

std::string RenderPromise(const Json& gpu, bool simulated, const std::string& version,
                          const std::string& date, Language language) {
  const Words words(language);
  std::string out = fmt::format("# GPU {}: {}\n\n", gpu["index"].get<unsigned>(), TextAt(gpu, "name", 80));
  if (simulated) out += words("SIMULATED: a software GPU. No hardware promises this.") + "\n\n";
  out += words(
      "Of {} the GPU can promise {} to tenants. {}", FormatBytes(gpu["mem_total_bytes"].get<uint64_t>()),
      FormatBytes(gpu["mem_promisable_bytes"].get<uint64_t>()),
      gpu["mode"].is_string() ? words("Its mode now is {}.", gpu["mode"].get<std::string>())
                              : words("It has no mode now: {}.", gpu["mode_reason"].get<std::string>()));
  out += "\n\n- ";
  out += words("As of {}: gpumux {}, driver {}.", date, version, TextAt(gpu, "driver_version", 40)) + "\n";
  for (const Json& note : gpu["notes"]) out += fmt::format("- {}\n", note.get<std::string>());
  out += "\n";
  for (const Json& mode : gpu["modes"]) out += ModeText(mode, words);
  return out;
}

}  // namespace gpumux::cli
