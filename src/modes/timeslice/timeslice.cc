// SPDX-License-Identifier: Apache-2.0
#include "modes/timeslice/timeslice.h"

namespace gpumux::modes {

const Capability& Timeslice::capability() const {
  static constexpr Capability kCapability{
      .mode = core::Mode::kTimeslice,
      .kernels_of_several_tenants_at_once = false,
      .needs_root = false,
      .memory_enforced_by = "guard",
      .memory_guaranteed_by = "ledger",
      .compute_promise = "equal turns among the processes that are busy; no share can be promised",
      .compute_enforced_by = "the driver's time-slicing",
      .neighbour_fault = "does not reach this tenant",
      .neighbour_death = "does not reach this tenant",
      .neighbour_load = "slows this tenant down: busy neighbours take turns with it",
      .neighbour_reads = "no: each process has its own GPU address space (the driver's doing)",
      .undivided = "memory bandwidth, caches and copy engines",
      .switching_cost = "about 19 % of the throughput with two busy tenants",  // measured on an H200
      .share_option = "refused",
      .after_fault = "",
      .share_min_ratio = -1,
      .share_max_ratio = -1,
  };
  return kCapability;
}

Status Timeslice::Supports(gpu::ComputeMode compute_mode) const {
  if (compute_mode == gpu::ComputeMode::kProhibited) {
    return Fail(Code::kUnsupported, "its compute mode is Prohibited: no program can use it",
                "an administrator can change that: nvidia-smi -c DEFAULT");
  }
  if (compute_mode == gpu::ComputeMode::kExclusiveProcess) {
    return Fail(Code::kUnsupported,
                "its compute mode is Exclusive_Process: the driver lets one process in at a time",
                "use --mode exclusive, or have an administrator run: nvidia-smi -c DEFAULT");
  }
  return {};
}

}  // namespace gpumux::modes
