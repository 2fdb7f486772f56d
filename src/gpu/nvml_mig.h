// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/mig_models.h"
#include "gpu/nvml_processes.h"
#include "gpu/uuid.h"
#include "gpumux/abi/nvml/mig.h"

namespace gpumux::gpu {

struct MigModes {
  bool current = false;
  bool pending = false;  // what the next reset makes of it; as `current` where nothing waits

  bool operator==(const MigModes&) const = default;
};

// Of a GPU instance in memory slices, of a compute instance in compute slices of its GPU instance.
struct MigPlacement {
  uint32_t start = 0, size = 0;

  bool operator==(const MigPlacement&) const = default;
};

// A GPU instance, or a compute instance within one. The id is one of the GPU, or of the GPU instance.
struct MigInstance {
  uint32_t id = 0;
  uint32_t profile = 0;  // its id
  MigPlacement placement;
};

// What compute instances a GPU instance can have.
struct MigComputeProfile {
  uint32_t id = 0;
  uint32_t slices = 0;
  uint32_t max_instances = 0;
  uint32_t sms = 0;
};

// A compute instance as programs see it: a device of its own.
struct MigDevice {
  uint32_t index = 0;  // NVML's; the list has holes
  uint32_t gpu_instance = 0;
  uint32_t compute_instance = 0;
  std::string uuid;  // what CUDA_VISIBLE_DEVICES takes: "MIG-...", before R470 "MIG-GPU-.../1/0"
  std::string name;
  // What the driver does not tell is not guessed.
  std::optional<uint32_t> sms;
  std::optional<uint64_t> total_bytes;  // of the GPU instance, which its compute instances share
};

// What NVML tells of a GPU's partitions, and how they are changed. Everything is asked anew at
// each call, by ids, so that nothing here outlives a reset. The same thread as Nvml.
//
// Errors: kDenied: no rights; kConflict: in use, no room, or the wrong state, and which of them;
// kNotFound: no such instance (any more); kUnsupported: the GPU has no MIG, MIG is off, or this NVML
// does not have the call - the message says which; else as Nvml.
class Mig {
 public:
  virtual ~Mig() = default;

  // Without a value: this GPU has no MIG. kUnsupported: NVML does not tell.
  virtual Result<std::optional<MigModes>> Modes(const Uuid& gpu);
  // Needs root. Success: `Modes` says whether it counts already or waits for a reset, or a GPU that
  // nobody uses. Instances end with it.
  virtual Result<MigModes> SetMode(const Uuid& gpu, bool on);

  // Each with `from_device` figures, in NVML's order, and its placements where the driver tells them
  // (it may want rights for those). kUnsupported while MIG is off: drivers list none then.
  virtual Result<std::vector<MigProfile>> Profiles(const Uuid& gpu);
  // How many more instances of a profile there is room for.
  virtual Result<uint32_t> Room(const Uuid& gpu, uint32_t profile);

  virtual Result<std::vector<MigInstance>> Instances(const Uuid& gpu);
  // Without `placement` the driver chooses.
  virtual Result<MigInstance> Create(const Uuid& gpu, uint32_t profile,
                                     const std::optional<MigPlacement>& placement);
  virtual Status Destroy(const Uuid& gpu, uint32_t instance);

  virtual Result<std::vector<MigComputeProfile>> ComputeProfiles(const Uuid& gpu, uint32_t instance);
  virtual Result<std::vector<MigInstance>> ComputeInstances(const Uuid& gpu, uint32_t instance);
  virtual Result<MigInstance> CreateCompute(const Uuid& gpu, uint32_t instance, uint32_t profile);
  virtual Status DestroyCompute(const Uuid& gpu, uint32_t instance, uint32_t compute);

  // Needs no rights. None while MIG is off.
  virtual Result<std::vector<MigDevice>> Devices(const Uuid& gpu);
  // Of the device with these ids: its memory, and the processes on it.
  virtual Result<DeviceMemory> Memory(const Uuid& gpu, uint32_t gpu_instance, uint32_t compute_instance);
  virtual Result<std::vector<ProcessUse>> Processes(const Uuid& gpu, uint32_t gpu_instance,
                                                    uint32_t compute_instance);
};

// By what a loaded libnvidia-ml.so has. `find` gives the handle of a GPU, `error` says what any other
// result means. All of them outlive it.
std::unique_ptr<Mig> MakeMig(void* library, std::function<Result<nvml::nvmlDevice_t>(const Uuid&)> find,
                             NvmlProcessLists& processes, NvmlError error);

}  // namespace gpumux::gpu
