// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/mig_models.h"
#include "gpumux/abi/nvml/nvml.h"
#include "softgpu/compute_starts.h"
#include "softgpu/protocol.h"

namespace gpumux::softgpu {

// What instances a GPU of this model can have, with `total` bytes and `sms` of the whole GPU. SMs and
// bytes that nobody knows are their part of the whole. Empty for a model whose placements nobody knows.
std::vector<MigProfileEntry> MigProfilesOf(const gpu::MigModel& model, uint64_t total, int sms);

// The partitions of one GPU: which there are, and what more fits. Decides by the driver's rules as
// far as they are known, on its own: what gpumux plans is tried on it. Knows of no process. Results are
// NVML's. Numbers of instances are the caller's, and unique.
class MigGpu {
 public:
  struct Compute {
    uint32_t place = 0;  // what requests call it
    uint32_t id = 0;     // within its GPU instance
    uint32_t profile = 0;
    uint32_t start = 0, size = 0;  // compute slices of the GPU instance
    uint32_t index = 0;            // among the GPU's MIG devices
    int sms = 0;
  };
  struct Instance {
    uint32_t number = 0;
    uint32_t id = 0;  // within the GPU
    MigProfileEntry profile = {};
    uint32_t start = 0;
    std::map<uint32_t, Compute> computes;  // by id
  };

  MigGpu() = default;  // without MIG
  MigGpu(std::vector<MigProfileEntry> profiles, const gpu::MigModel& model);

  bool capable() const { return !profiles_.empty(); }
  bool enabled() const { return enabled_; }
  bool pending() const { return pending_; }
  const std::vector<MigProfileEntry>& profiles() const { return profiles_; }
  const std::map<uint32_t, Instance>& instances() const { return instances_; }  // by id
  uint32_t max_devices() const { return enabled_ ? max_instances_ : 0; }
  uint32_t memory_slices() const { return memory_slices_; }
  const Instance* FindInstance(uint32_t number) const;
  const Compute* FindCompute(uint32_t place) const;

  // What NVML says of the activation. `in_use`: a process is on the GPU.
  nvml::nvmlReturn_t SetMode(bool on, bool in_use);
  // The GPU was reset: nothing is left of its instances, and what was pending counts.
  void Reset();
  // The driver was unloaded, or the machine was started anew.
  void Unload();
  // As the machine starts.
  void Boot(bool enabled);

  // `start`: nothing: the lowest that is free.
  nvml::nvmlReturn_t Create(uint32_t profile, std::optional<uint32_t> start, uint32_t number);
  // IN_USE while it has compute instances.
  nvml::nvmlReturn_t Destroy(uint32_t number);
  nvml::nvmlReturn_t CreateCompute(uint32_t number, uint32_t profile, std::optional<uint32_t> start,
                                   uint32_t place);
  nvml::nvmlReturn_t DestroyCompute(uint32_t place);
  // How many more of a profile fit.
  nvml::nvmlReturn_t Room(uint32_t profile, uint32_t* count) const;
  nvml::nvmlReturn_t ComputeRoom(uint32_t number, uint32_t profile, uint32_t* count) const;

  // A line each for what outlives the server; Restore takes what Save gave, of any origin, and
  // leaves the GPU as it is after a start of the machine where that is not what Save would give.
  std::string Save() const;
  Status Restore(const std::string& text);

 private:
  const MigProfileEntry* FindProfile(uint32_t id) const;
  nvml::nvmlReturn_t Fits(const MigProfileEntry& profile, uint32_t start) const;
  Instance* Find(uint32_t number);
  uint32_t FreeIndex() const;
  Status RestoreLine(const std::string& line);

  std::vector<MigProfileEntry> profiles_;
  uint32_t compute_slices_ = 0, memory_slices_ = 0, max_instances_ = 0;
  bool needs_reset_ = false, survives_ = false;
  bool enabled_ = false, pending_ = false;
  std::map<uint32_t, Instance> instances_;
};

}  // namespace gpumux::softgpu
