// SPDX-License-Identifier: Apache-2.0
//
// The daemon's side of the shared pages (gpumux/abi/pages.h). What a process
// wrote is copied once and clamped here; nothing above this file sees raw words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/shared_memory.h"
#include "core/promise.h"
#include "gpumux/abi/pages.h"

namespace gpumux::daemon {

// One GPU of one process, as its page says, each figure within what is possible.
struct ProcessWords {
  uint64_t free_bytes = 0;       // at most `granted_bytes` of the call
  uint64_t committed_bytes = 0;  // at most what the device has
  uint64_t peak_bytes = 0;       // the same
  uint64_t contexts = 0;
  uint32_t contexts_under_way = 0;  // at most 1: the guard makes one at a time
  uint64_t refused_own_limit = 0;
  uint64_t refused_device_full = 0;
  uint64_t refused_own_part = 0;
  uint64_t last_refused_bytes = 0;
  uint64_t launches = 0;
  uint64_t unrouted = 0;
  uint32_t mps = 0;             // enum gpumux_mps_attached
  uint32_t mps_sms = 0;         // 0: not asked yet
  uint64_t mps_free_bytes = 0;  // that the driver named with the first context
};

// What a process has under way, as far as its guard can tell.
struct WorkWords {
  uint64_t launches = 0;
  uint64_t done = 0;       // at most `launches`
  bool all_ended = true;   // all of them are known to have
  uint64_t launch_ns = 0;  // the longest that one took; 0: nothing is known
  uint64_t descriptors_open = 0;
};

// How the page shows in a process's /proc/PID/maps.
inline constexpr char kProcessPageName[] = "gpumux-process";

class ProcessPage {
 public:
  static Result<ProcessPage> Create();
  // One that an earlier daemon made, from the process that has it.
  static Result<ProcessPage> Adopt(UniqueFd fd);

  ProcessWords Read(unsigned slot, uint64_t granted_bytes, uint64_t device_bytes) const;
  // By how much the free credit is below zero: the driver took more than was
  // reserved.
  uint64_t Debt(unsigned slot) const;
  // The credit that the process has, in use and free, as it says itself: any number.
  // nullopt: it is in the middle of a change, and stays there.
  std::optional<uint64_t> Held(unsigned slot) const;
  void SetOverhead(unsigned slot, uint64_t bytes);
  // The request is granted; its guard has that even if no answer comes any more.
  void OfferGrant(uint32_t request_id);
  // The answer cannot be sent. False: the guard took it from the page.
  bool WithdrawGrant(uint32_t request_id);
  void AddCredit(unsigned slot, uint64_t bytes);
  // Empties the free credit and says what was in it, at most `granted_bytes`.
  uint64_t TakeCredit(unsigned slot, uint64_t granted_bytes);
  // The program whose words these were is gone.
  void Clear(unsigned slot);
  bool InForce() const;
  // The first error of CUDA that stays for good; 0: none.
  uint32_t FirstError() const;
  uint64_t FirstErrorNs() const;
  WorkWords Work() const;
  int fd() const { return memory_.read_write(); }

 private:
  gpumux_process_page& page() const { return *memory_.as<gpumux_process_page>(); }
  SharedMemory memory_;
};

// A tenant page of an earlier daemon: nobody takes bytes there from now on.
void CloseOrphanPage(UniqueFd fd);

class TenantPages {
 public:
  struct Gpu {
    gpu::Uuid uuid;
    uint64_t device_total_bytes;
    uint64_t context_bytes;
  };
  static Result<TenantPages> Create(const std::string& tenant_id, const std::vector<Gpu>& gpus, bool strict,
                                    bool simulated);

  void SetLimits(unsigned slot, uint64_t guaranteed_bytes, uint64_t limit_bytes, uint64_t granted_bytes);
  void SetState(uint32_t state);
  // Its processes are to be clients of MPS, and their descriptors of GPUs are held.
  void SetMps();
  bool IsMps() const;
  // Its processes are to have gate pages.
  void SetGate(bool on);
  // GPUMUX_LAUNCH_*.
  void SetLaunch(uint32_t bits);
  // Those who may close gates shall ask anew which these are.
  void CallForGates();
  uint32_t GatesCall() const;
  // All of them shall send theirs anew.
  void CallForDescriptors();
  void SetHeartbeat(uint64_t monotonic_ns);

  int limits_fd() const { return limits_read_only_.get(); }
  int tenant_fd() const { return tenant_.read_write(); }

 private:
  gpumux_limits_page& limits() const { return *limits_.as<gpumux_limits_page>(); }
  SharedMemory limits_;
  UniqueFd limits_read_only_;
  SharedMemory tenant_;
};

}  // namespace gpumux::daemon
