// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "gpu/nvml.h"
#include "gpu/nvml_mig.h"

namespace gpumux::cli {

// A compute instance, which is what programs run on.
struct MigDeviceState {
  gpu::MigDevice device;
  Result<gpu::DeviceMemory> memory = gpu::DeviceMemory{};
  Result<std::vector<gpu::ProcessUse>> processes = std::vector<gpu::ProcessUse>{};
  // Who has a promise there: names of tenants. Nullopt: no daemon was asked.
  std::optional<std::vector<std::string>> tenants = {};
};

// A GPU instance with its compute instances. Without rights the driver shows the latter alone: then
// `placed` is unknown.
struct MigInstanceState {
  uint32_t id = 0;
  std::optional<gpu::MigInstance> placed;
  std::string profile;  // its name; may be empty
  std::vector<MigDeviceState> devices;
};

// What NVML tells of the partitions of one GPU. Each part that it does not tell has the reason.
struct MigGpuState {
  gpu::Device device;
  Result<std::optional<gpu::MigModes>> modes;
  gpu::MigModel model;  // of the driver's profiles; no profiles: they were not told
  Status profiles;
  Result<std::vector<MigInstanceState>> instances = std::vector<MigInstanceState>{};
  Status placements;  // of the instances
  // By profile's name: how many more of it alone there is room for.
  Result<std::vector<std::pair<std::string, uint32_t>>> room =
      std::vector<std::pair<std::string, uint32_t>>{};

  bool enabled() const { return modes && modes->has_value() && (*modes)->current; }
};

// Reads, and changes nothing.
MigGpuState ReadMigState(gpu::Nvml& nvml, const gpu::Device& device);

// Who is asked to do something about it.
struct MigReader {
  bool root = false;       // already
  bool simulated = false;  // the software GPU, for which there is no nvidia-smi
};
// For people.
std::string MigStateText(const std::vector<MigGpuState>& gpus, const Terminal& terminal,
                         const MigReader& reader);
// One line: how MIG is on this GPU.
std::string MigStateLine(const MigGpuState& gpu);
// What to do where more could be seen, or MIG be enabled; a line each, may be empty.
std::string MigAdvice(const MigGpuState& gpu, const MigReader& reader);

}  // namespace gpumux::cli
