// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sim/gpu_models.h"

namespace gpumux::sim {

inline constexpr uint32_t kMaxSpecGpus = 64;

// One GPU of a machine.
struct GpuInstance {
  GpuModelData model;  // as it is after overrides, except its name
  std::string name;    // without the mark of a simulation
  GpuSpec spec;
  std::optional<std::array<unsigned char, 16>> uuid;
  bool mig = false;  // MIG is enabled when the machine starts
};

struct Machine {
  std::vector<GpuInstance> gpus;  // 1 to kMaxSpecGpus
  // Of the driver; empty and 0: the one whose behaviour was recorded.
  std::string driver_version;
  int cuda_version = 0;  // major * 1000 + minor * 10
};

// "H200", "8xH100-80", "2xA30,1xL4".
Result<Machine> ParseGpuList(std::string_view text);
// A JSON document as docs/reference/software-gpu-spec.md says. Anything that it
// does not name is an error. Both are for text of any origin.
Result<Machine> ParseGpuDocument(std::string_view json);
// Whether a spec is the path of such a document and not a list.
bool IsGpuDocumentPath(std::string_view spec);

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and back.
std::optional<std::array<unsigned char, 16>> ParseUuid(std::string_view text);

// The CUDA version of the driver branch that a version like "550.54.15" belongs
// to; 0 for one that is not known. The newest known is the recorded one's.
int CudaVersionOfDriver(std::string_view version);
// "550.54.15": two or three numbers.
bool IsDriverVersion(std::string_view text);

}  // namespace gpumux::sim
