// SPDX-License-Identifier: Apache-2.0
#include "modes/mps/mps.h"

namespace gpumux::modes {

const Capability& Mps::capability() const {
  static constexpr Capability kCapability{
      .mode = core::Mode::kMps,
      .kernels_of_several_tenants_at_once = true,
      .needs_root = false,
      .memory_enforced_by = "guard, and MPS for each process",
      .memory_guaranteed_by = "ledger",
      .compute_promise =
          "kernels run beside those of others while multiprocessors last; no share can be promised",
      .compute_enforced_by = "MPS: a ceiling on multiprocessors",
      .neighbour_fault = "ends this tenant's work on the GPU",
      .neighbour_death = "does not reach this tenant while the descriptors of the dead are held",
      .neighbour_load = "slows this tenant down where both want the same multiprocessors, memory or caches",
      .neighbour_reads = "no: each process has its own GPU address space (the driver's doing)",
      .undivided = "memory bandwidth, caches and copy engines",
      .switching_cost = "none",
      .share_option = "a ceiling on multiprocessors, as 40%; no minimum",
      .after_fault = "--restart neighbour-fault starts the program again",
      .share_min_ratio = -1,
      .share_max_ratio = -1,
  };
  return kCapability;
}

Status Mps::Supports(gpu::ComputeMode compute_mode) const {
  if (compute_mode == gpu::ComputeMode::kProhibited) {
    return Fail(Code::kUnsupported, "its compute mode is Prohibited: no program can use it",
                "an administrator can change that: nvidia-smi -c DEFAULT");
  }
  // The one process that Exclusive_Process lets in is the server.
  return {};
}

}  // namespace gpumux::modes
