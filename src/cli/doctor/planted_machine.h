// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/doctor/environment.h"
#include "gpu/nvml_mig.h"

namespace gpumux::cli::doctor {

// For tests: what NVML says of MIG, the same of every GPU.
class FakeMig final : public gpu::Mig {
 public:
  Result<std::optional<gpu::MigModes>> Modes(const gpu::Uuid&) override { return modes; }
  Result<std::vector<gpu::MigDevice>> Devices(const gpu::Uuid&) override { return devices; }

  Result<std::optional<gpu::MigModes>> modes = std::optional(gpu::MigModes{});
  Result<std::vector<gpu::MigDevice>> devices = std::vector<gpu::MigDevice>{};
};

// For tests: figures of NVML that a test sets.
class FakeNvml final : public gpu::Nvml {
 public:
  explicit FakeNvml(unsigned gpus);
  const std::vector<gpu::Device>& Devices() const override { return devices; }
  gpumux::Status Restart() override { return {}; }
  std::string DriverVersion() const override { return driver_version; }
  Result<gpu::DeviceMemory> Memory(const gpu::Uuid&) override;
  Result<std::vector<gpu::ProcessUse>> Processes(const gpu::Uuid&) override { return processes; }
  Result<gpu::ComputeMode> Mode(const gpu::Uuid&) override { return mode; }
  gpu::Mig& mig() override { return partitions; }
  Result<bool> PersistenceEnabled(const gpu::Uuid&) override { return persistence; }

  std::vector<gpu::Device> devices;
  std::string driver_version = "580.159.04";
  bool lost = false;
  std::vector<gpu::ProcessUse> processes;
  gpu::ComputeMode mode = gpu::ComputeMode::kDefault;
  FakeMig partitions;
  bool persistence = true;
};

// A machine with one NVIDIA GPU and nothing wrong, in a folder of its own; a
// test breaks something of it. What it does not give itself (the C library, the
// guard) is this machine's.
class PlantedMachine {
 public:
  PlantedMachine();
  ~PlantedMachine();
  PlantedMachine(const PlantedMachine&) = delete;
  PlantedMachine& operator=(const PlantedMachine&) = delete;

  std::string Write(const std::string& path, const std::string& text);  // below the root; gives the full name
  void Remove(const std::string& path);
  void Limit(int resource, uint64_t value) { limits[resource] = value; }
  // Asks the daemons anew, at the places of the runtime directory.
  void LookAtDaemons();
  // A process of the machine that runs as `uid`.
  void AddProcess(pid_t pid, const std::string& name, uid_t uid);
  // One under gpumux run, whose program is the file `program` of this machine: Environment::pid.
  void AddTenantProcess(pid_t pid, const std::string& program);

  std::string root;
  Environment environment;
  FakeNvml* nvml = nullptr;  // the environment's
  GpuView gpus;
  Result<CudaView> cuda =
      CudaView{.file = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", .cuda_version = 13000};
  std::vector<DaemonView> daemons;
  std::map<int, uint64_t> limits;
  std::map<std::string, Space> spaces;  // of paths; else there is plenty
};

}  // namespace gpumux::cli::doctor
