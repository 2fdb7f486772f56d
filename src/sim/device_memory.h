// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "sim/gpu_spec.h"

namespace gpumux::sim {

// The physical memory of one GPU and who holds it, counted as the driver
// counts: a process's own figure (what NVML lists for it) and the device's
// figure, which is larger. Not thread-safe; no I/O.
class DeviceMemory {
 public:
  using Process = uint64_t;

  explicit DeviceMemory(const GpuSpec& spec) : spec_(spec) {}

  // Before its first context: what each of its contexts takes instead of the
  // spec's figures, and the most that it may hold in its own figure, managed
  // memory counted in full (0: no such limit).
  void SetTerms(Process process, uint64_t context_own, uint64_t context_device, uint64_t limit);

  uint64_t used() const { return used_; }
  uint64_t free() const { return spec_.usable - used_; }
  // What one process may still take.
  uint64_t FreeFor(Process process) const;
  // 0 for a process that holds nothing.
  uint64_t OwnBytes(Process process) const;
  // Whether NVML lists the process: it does so from its first context on.
  bool Listed(Process process) const;

  // cuInit. While any process is in this state the driver holds some memory of
  // its own, in no process's figure.
  void AddProcess(Process process);

  // Each is false, and changes nothing, when the memory is not there.
  bool AddContext(Process process);
  bool Take(Process process, uint64_t bytes);
  // First use of managed pages on the device: counts for the device alone.
  bool TouchManaged(Process process, uint64_t bytes);

  // Managed memory that a process with a limit has, touched or not: counts
  // within the limit alone. False: it is over.
  bool ReserveManaged(Process process, uint64_t bytes);

  // Each is false, and changes nothing, when the process does not hold as much.
  bool ReleaseManaged(Process process, uint64_t bytes);
  bool RemoveContext(Process process);
  bool Give(Process process, uint64_t bytes);
  bool FreeManaged(Process process, uint64_t bytes);

  // Memory that outlives the process that took it, as others use it: it leaves
  // the process's figure and stays in the device's, until another process is
  // charged for it or it is freed. Each is false, and changes nothing, when the
  // process does not hold as much, or as much is not without an owner.
  bool Disown(Process process, uint64_t bytes);
  bool Adopt(Process process, uint64_t bytes);
  bool FreeOwnerless(uint64_t bytes);

  // The process has ended, however: everything it held is free.
  void RemoveProcess(Process process);

 private:
  struct Account {
    uint64_t contexts = 0;
    uint64_t taken = 0;          // allocations, in the own figure
    uint64_t managed = 0;        // touched managed pages
    uint64_t managed_cache = 0;  // free pages that managed memory keeps
    bool initialised = false;
    uint64_t context_own = 0, context_device = 0;
    uint64_t limit = 0;
    uint64_t reserved_managed = 0;
    uint64_t Counted() const { return contexts * context_own + taken + reserved_managed; }
    bool Within(uint64_t more) const {
      return limit == 0 || (Counted() <= limit && more <= limit - Counted());
    }
  };

  Account& Of(Process process);

  // Makes room for `bytes`, from other processes' managed caches if need be.
  bool MakeRoom(uint64_t bytes);

  GpuSpec spec_;
  uint64_t used_ = 0;
  uint64_t ownerless_ = 0;
  uint64_t initialised_ = 0;  // processes
  std::map<Process, Account> accounts_;
};

}  // namespace gpumux::sim
