// SPDX-License-Identifier: Apache-2.0
//
// What a process takes on a GPU beyond what it allocates: its contexts, and the
// code that the driver loads when a kernel is first used. No allocation call
// announces it, so it is charged beforehand by a measured allowance and
// corrected by what NVML shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpumux::core {

struct ContextCost {
  uint64_t context_bytes = 0;       // on the process's own NVML figure, per context
  uint64_t driver_share_bytes = 0;  // of each context, on the device's figure alone
  uint64_t first_share_bytes = 0;   // once per GPU with any context, on the device's figure alone
  uint64_t mps_server_bytes = 0;    // of a server of MPS, on the device's figure
  bool measured = false;            // false: a safe guess, until NVML has shown the cost

  // What a tenant is charged for one context, without the allowance.
  uint64_t ChargeBytes() const { return context_bytes + driver_share_bytes; }
};

// By the name that NVML gives the model.
ContextCost ContextCostOf(std::string_view gpu_name);

// Kept in front of what a process with a context really uses, as long as its
// tenant has room: PyTorch was seen to take 70 to 220 MiB beyond its context
// and its allocator once cuBLAS and cuDNN kernels are loaded, in steps below
// this size between two readings.
inline constexpr uint64_t kLazyCodeAllowanceBytes = 64ull << 20;

// A promise below one context and this much is refused: no program could work in it.
inline constexpr uint64_t kMinimumBeyondContextBytes = 32ull << 20;

// One reading of one process on one GPU. The page's words are read before and
// after NVML is asked, because calls go on meanwhile.
struct OverheadReading {
  uint32_t contexts = 0;              // that exist, as the guard says
  uint32_t pending_contexts = 0;      // charged, and not yet said to exist or to have failed
  std::optional<uint64_t> own_bytes;  // NVML's figure; nullopt: not listed or not known
  uint64_t granted_bytes = 0;         // the daemon's own figure
  uint64_t committed_before_bytes = 0, committed_after_bytes = 0;
  uint64_t free_before_bytes = 0, free_after_bytes = 0;
};

struct Overhead {
  uint64_t real_bytes = 0;    // found, or the least that the contexts must take
  uint64_t charge_bytes = 0;  // real, contexts under way, and the allowance as far as there is room
};

// `previous_real_bytes` is the last answer's; `room_bytes` what the tenant could
// take for this process's overhead in all (what is available to it now and
// this process's present overhead).
//
// While no call is under way, what NVML shows beyond the committed bytes is the
// overhead exactly. Else only bounds are known: the device cannot hold more of
// the process's allocations than was granted and is not free, so the rest is
// overhead at least. Managed memory is committed and not in NVML's figure, so
// the difference may even be negative: then the contexts' own cost counts.
Overhead AssessOverhead(const OverheadReading& reading, const ContextCost& cost, uint64_t previous_real_bytes,
                        uint64_t room_bytes);

// A model that nobody measured: the first process that has one context and
// nothing else shows what a context costs.
void LearnContextCost(const OverheadReading& reading, ContextCost& cost);

}  // namespace gpumux::core
