// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "base/clock.h"
#include "core/context_cost.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// Reads NVML and brings ledgers and pages in line with it: overheads of the
// tenants' processes, unmanaged and unexplained bytes, tenants above their limit.
class Monitor {
 public:
  Monitor(Machine& machine, Tenants& tenants, EventLog& events, const Clock& clock)
      : machine_(machine), tenants_(tenants), events_(events), clock_(clock) {}

  // Makes a process that NVML shows, and that is a tenant's without having said
  // hello, a member; null if it is gone.
  std::function<Member*(Tenant&, const ProcessName&)> adopt;
  // A process that nobody's tenant is may be a server of ours.
  std::function<bool(const gpu::Uuid&, pid_t)> is_mps_server;

  // False: NVML does not answer for the GPU, which is closed until it does.
  bool Refresh(size_t gpu_index);
  void RefreshIfOlder(size_t gpu_index, Time age);
  void RefreshAll();
  void RefreshAllIfOlder(Time age);

  // Writes limits, granted bytes and state of every tenant of the GPU to its page.
  void Publish(size_t gpu_index);

 private:
  struct Before {
    Member* member;
    Tenant* tenant;
    unsigned slot;
    ProcessWords words;
  };

  bool ReadOnce(size_t gpu_index);
  uint64_t TakeStrangers(size_t gpu_index, const std::map<pid_t, uint64_t>& own,
                         std::vector<Before>& members);
  uint64_t ExplainedBytes(const GpuState& gpu, const Before& before) const;
  void GrantDebt(GpuState& gpu, const Before& before);
  void Assess(GpuState& gpu, const Before& before);
  void DoubtJump(Member::Gpu& on, uint64_t contexts_bytes, core::Overhead& overhead);
  void FreezeAboveLimit(size_t gpu_index, GpuState& gpu);

  Machine& machine_;
  Tenants& tenants_;
  EventLog& events_;
  const Clock& clock_;
  bool look_again_ = false;  // the last reading found what it did not believe
};

// A process with a context that no guard watches for this long makes its
// tenant's memory limit "not enforced".
inline constexpr Time kGuardGrace = std::chrono::seconds(5);

}  // namespace gpumux::daemon
