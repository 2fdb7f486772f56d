// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gpu/index.h"
#include "gpu/locality.h"
#include "gpu/source.h"
#include "gpu/uuid.h"

namespace gpumux::gpu {

class Mig;

// What makes a device an instance of a partitioned GPU (MIG).
struct InstanceOf {
  Uuid gpu;
  uint32_t gpu_instance = 0, compute_instance = 0;
  std::string profile;          // "1g.18gb", "1c.3g.71gb"
  std::optional<uint32_t> sms;  // what the driver does not tell is not guessed

  bool operator==(const InstanceOf&) const = default;
};

struct Device {
  Uuid uuid;
  Index index;  // NVML's, which is nvidia-smi's; CUDA may order differently
  std::string name;
  std::string pci_bus_id;                   // "00000000:18:00.0"
  std::optional<InstanceOf> instance = {};  // nullopt: a GPU
};

enum class ComputeMode { kDefault, kProhibited, kExclusiveProcess, kUnknown };

struct DeviceMemory {
  uint64_t total_bytes = 0;
  // The driver's own, never free for anybody. A driver without the second
  // version of the query hides it inside `used_bytes`; then it is 0 here.
  uint64_t reserved_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
};

struct ProcessUse {
  pid_t pid = 0;                       // in the pid namespace NVML answers for
  std::optional<uint64_t> used_bytes;  // nullopt: the driver does not know
};

// A critical error of a GPU, by the driver's number.
struct Xid {
  Uuid gpu;
  unsigned number = 0;
};

// What gpumux reads of NVML. An interface, so that the daemon is tested against
// figures of the test's own making; Open gives the library's. Calls take
// microseconds (5 for memory, 16 for processes on an H200) but may block for
// seconds on a sick GPU. Not thread-safe: one thread owns it.
//
// Errors: kUnavailable for a library or GPU that is lost or not permitted,
// kNotFound for a UUID that is not among Devices(), kUnsupported for a query the driver lacks.
class Nvml {
 public:
  virtual ~Nvml() = default;

  // Loads the library that `source` names and initialises it. On the software
  // GPU also sets GPUMUX_SOFTGPU and GPUMUX_SOFTGPU_DIR of this process, which
  // is how the stand-in finds its state: call it before threads start.
  static Result<std::unique_ptr<Nvml>> Open(const GpuSource& source);

  // The GPUs found at Open or the last Restart, in NVML's order.
  virtual const std::vector<Device>& Devices() const = 0;
  // Ends NVML and starts it anew: a GPU that fell off the bus and came back, or a
  // driver that was loaded again, is answered for only then. A GPU is its UUID
  // before and after; its index may change. On an error nothing is answered for
  // until a later call succeeds. Takes as long as `nvidia-smi` does.
  virtual Status Restart() = 0;
  virtual std::string DriverVersion() const = 0;  // empty: unknown
  virtual Result<DeviceMemory> Memory(const Uuid& gpu) = 0;
  // Compute and graphics processes, each pid once.
  virtual Result<std::vector<ProcessUse>> Processes(const Uuid& gpu) = 0;
  virtual Result<ComputeMode> Mode(const Uuid& gpu) = 0;
  // The part of the time, of NVML's last sampling period (a second at most), in which some kernel ran: not
  // how much of the GPU it had. kUnsupported where it does not tell, as on a GPU with MIG.
  virtual Result<double> Busy(const Uuid&) {
    return Fail(Code::kUnsupported, "this NVML does not tell how busy a GPU is");
  }
  // For every program of the machine, until it is set again or the driver is loaded
  // anew. kDenied: needs root. `mode`: not kUnknown.
  virtual Status SetMode(const Uuid&, ComputeMode) {
    return Fail(Code::kUnsupported, "this NVML does not set the compute mode");
  }
  // By its cores and the generation of its architecture. kUnsupported where
  // it does not tell, or the generation is not known.
  virtual Result<unsigned> Multiprocessors(const Uuid& gpu);
  // Processors and memory nodes near it. kUnsupported where it does not tell.
  virtual Result<Locality> Near(const Uuid& gpu);
  // Partitions (nvml_mig.h). One that answers nothing, where there is nothing to ask.
  virtual Mig& mig();
  // Looks which instances of partitioned GPUs are among Devices() now (nvml_instances.h); true: others
  // than before.
  virtual bool Look() { return false; }
  virtual bool IsPartitioned(const Uuid&) const { return false; }
  // Whether it is enabled now. kUnsupported: this NVML does not tell.
  virtual Result<bool> MigEnabled(const Uuid& gpu);
  // Xids since the last call, a few at most, without waiting. The first call, and the first after a
  // Restart, begins to watch; where NVML does not tell there are none. Of an instance: its GPU's.
  virtual std::vector<Xid> TakeXids() { return {}; }
  // A setting that nobody decides by, and a doctor tells of.
  virtual Result<bool> PersistenceEnabled(const Uuid&) {
    return Fail(Code::kUnsupported, "persistence is not asked about");
  }
};

}  // namespace gpumux::gpu
