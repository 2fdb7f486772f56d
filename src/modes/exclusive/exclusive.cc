// SPDX-License-Identifier: Apache-2.0
#include "modes/exclusive/exclusive.h"

namespace gpumux::modes {

const Capability& Exclusive::capability() const {
  static constexpr Capability kCapability{
      .mode = core::Mode::kExclusive,
      .kernels_of_several_tenants_at_once = false,
      .needs_root = false,
      .memory_enforced_by = "guard",
      .memory_guaranteed_by = "no other tenant is admitted",
      .compute_promise = "all of the GPU",
      .compute_enforced_by = "admission: no other tenant is admitted",
      .neighbour_fault = "no neighbour",
      .neighbour_death = "no neighbour",
      .neighbour_load = "no neighbour",
      .neighbour_reads = "no neighbour",
      .undivided = "",
      .switching_cost = "none",
      .share_option = "not needed, and refused",
      .after_fault = "",
      .share_min_ratio = 1,
      .share_max_ratio = 1,
  };
  return kCapability;
}

Status Exclusive::Supports(gpu::ComputeMode compute_mode) const {
  if (compute_mode == gpu::ComputeMode::kProhibited) {
    return Fail(Code::kUnsupported, "its compute mode is Prohibited: no program can use it",
                "an administrator can change that: nvidia-smi -c DEFAULT");
  }
  // One process at a time is also what a driver in Exclusive_Process grants.
  return {};
}

}  // namespace gpumux::modes
