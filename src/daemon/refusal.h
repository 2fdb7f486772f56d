// SPDX-License-Identifier: Apache-2.0
//
// Why a tenant got no memory, with what was so at that moment. Plain data;
// refusals.h finds it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ledger.h"
#include "gpu/uuid.h"

namespace gpumux::daemon {

struct Refusal {
  enum class Cause {
    kOwnLimit,  // the tenant's limit
    kGpuFull,   // within its limit, but what is left is promised or used
    kOwnPart,   // what a program set for its own process
    kDriver,    // gpumux had granted it, and the driver said out of memory
  };
  struct Holder {
    std::string id, name, owner;
    uint64_t held_bytes = 0;  // guaranteed to it or used by it, whichever is more
    uint64_t guaranteed_bytes = 0;
  };
  struct Outsider {
    pid_t pid = 0;
    std::string name, owner;        // empty: gone meanwhile
    std::optional<uint64_t> bytes;  // nullopt: NVML does not say
  };
  static constexpr size_t kMaxListed = 8;

  Cause cause = Cause::kOwnLimit;
  gpu::Uuid gpu;
  unsigned gpu_index = 0;
  core::ProcessKey process = 0;
  uint64_t bytes = 0;  // 0: not known
  // Of the tenant, on this GPU.
  uint64_t guaranteed_bytes = 0;
  std::optional<uint64_t> limit_bytes;
  uint64_t used_bytes = 0;
  // Of the GPU.
  uint64_t total_bytes = 0;
  uint64_t promisable_bytes = 0;
  uint64_t unexplained_bytes = 0;
  // The largest, largest first; and how many are not listed.
  std::vector<Holder> holders;
  std::vector<Outsider> outsiders;
  size_t more_holders = 0, more_outsiders = 0;
  std::chrono::nanoseconds at{};  // of Clock::Now, when the lists were made
  std::chrono::system_clock::time_point wall{};
};

std::string_view Name(Refusal::Cause cause);

}  // namespace gpumux::daemon
