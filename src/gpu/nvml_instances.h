// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "gpu/nvml.h"
#include "gpu/nvml_mig.h"

namespace gpumux::gpu {

// NVML with the instances of partitioned GPUs (MIG) as devices of their own, after the GPUs:
// each has a UUID, memory, processes and multiprocessors like a GPU. A GPU that is partitioned
// stays; its processes are those of its instances, and not told twice.
//
// Errors as Nvml; kNotFound for an instance that is gone.
//
// Nvml::Open gives one without.
Result<std::unique_ptr<Nvml>> OpenNvmlWithInstances(const GpuSource& source);

class NvmlWithInstances final : public Nvml {
 public:
  explicit NvmlWithInstances(std::unique_ptr<Nvml> nvml);

  const std::vector<Device>& Devices() const override { return devices_; }
  Status Restart() override;
  // Asks anew which instances there are, without ending NVML: some 50 us for each. True: others
  // than before. Instances whose UUID no program could be given (drivers before R470) are left out.
  bool Look() override;
  // Whether the GPU is partitioned, as of the last look.
  bool IsPartitioned(const Uuid& gpu) const override;

  std::string DriverVersion() const override { return nvml_->DriverVersion(); }
  Result<DeviceMemory> Memory(const Uuid& gpu) override;
  Result<std::vector<ProcessUse>> Processes(const Uuid& gpu) override;
  // Of an instance: that of its GPU.
  Result<ComputeMode> Mode(const Uuid& gpu) override;
  Result<double> Busy(const Uuid& gpu) override;
  Status SetMode(const Uuid& gpu, ComputeMode mode) override;
  Result<unsigned> Multiprocessors(const Uuid& gpu) override;
  Result<Locality> Near(const Uuid& gpu) override;
  Mig& mig() override { return nvml_->mig(); }
  Result<bool> MigEnabled(const Uuid& gpu) override { return nvml_->MigEnabled(gpu); }
  std::vector<Xid> TakeXids() override { return nvml_->TakeXids(); }
  Result<bool> PersistenceEnabled(const Uuid& gpu) override { return nvml_->PersistenceEnabled(gpu); }

 private:
  // The instance's, or null.
  const InstanceOf* Find(const Uuid& device) const;
  // The GPU itself, or the GPU of an instance.
  Uuid GpuOf(const Uuid& device) const;

  std::unique_ptr<Nvml> nvml_;
  std::vector<Device> devices_;
  std::map<Uuid, InstanceOf> instances_;
  std::set<Uuid> partitioned_;
};

}  // namespace gpumux::gpu
