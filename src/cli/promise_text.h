// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/promise.h"
#include "gpu/nvml.h"

namespace gpumux::cli {

enum class Language { kEnglish, kJapanese };

// By what the environment says of the language of messages: the first of these
// that is not empty. nullptr: not set.
Language LanguageOf(const char* lc_all, const char* lc_messages, const char* lang);

// What is known of one GPU, from the daemon or from NVML alone.
struct PromiseGpu {
  gpu::Device device;
  std::string driver_version;
  gpu::ComputeMode compute_mode = gpu::ComputeMode::kUnknown;
  bool mig = false;
  uint64_t total_bytes = 0;
  uint64_t reserve_bytes = 0;      // never promised
  uint64_t outside_bytes = 0;      // held by what runs outside gpumux now
  std::optional<core::Mode> mode;  // that it has now
  std::string no_mode_because;     // without `mode`
};

// `tenants` promises of `mem_bytes` each fit together on a GPU that has no other
// tenant; `program_bytes` of each are left beside the context of one process.
struct EqualPart {
  unsigned tenants = 1;
  uint64_t mem_bytes = 0;
  uint64_t program_bytes = 0;
};
// Rounded down to tenths of a GiB, as one would write them. Empty: nothing fits.
std::vector<EqualPart> EqualParts(const PromiseGpu& gpu, core::Mode mode);

// The element of gpumux.promise/1 `data.gpus`: what the GPU promises in each
// mode (or in `only`), in sentences of that language. All that is said of a mode
// comes from its capability record.
nlohmann::json PromiseJson(const PromiseGpu& gpu, std::optional<core::Mode> only, Language language);

// As Markdown. `version` is gpumux's, `date` a day.
std::string RenderPromise(const nlohmann::json& gpu, bool simulated, const std::string& version,
                          const std::string& date, Language language);

}  // namespace gpumux::cli
