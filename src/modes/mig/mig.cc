// SPDX-License-Identifier: Apache-2.0
#include "modes/mig/mig.h"

namespace gpumux::modes {

const Capability& Mig::capability() const {
  static constexpr Capability kCapability{
      .mode = core::Mode::kMig,
      .kernels_of_several_tenants_at_once = true,
      .needs_root = false,
      .memory_enforced_by = "the GPU's partition, and the guard",
      .memory_guaranteed_by = "the GPU's partition: no other tenant is admitted to the instance",
      .compute_promise = "all multiprocessors of the instance",
      .compute_enforced_by = "the GPU's partition",
      .neighbour_fault = "does not reach this tenant",
      .neighbour_death = "does not reach this tenant",
      .neighbour_load =
          "does not reach its multiprocessors, memory and cache; power, clocks and PCIe are shared",
      .neighbour_reads = "no",
      .undivided = "power, clocks, PCIe",
      .switching_cost = "none",
      .share_option = "not needed, and refused: an instance has a fixed part of the GPU",
      .after_fault = "",
      .share_min_ratio = 1,
      .share_max_ratio = 1,
  };
  return kCapability;
}

Status Mig::Supports(gpu::ComputeMode compute_mode) const {
  if (compute_mode == gpu::ComputeMode::kProhibited) {
    return Fail(Code::kUnsupported, "its compute mode is Prohibited: no program can use it",
                "an administrator can change that: nvidia-smi -c DEFAULT");
  }
  return {};
}

}  // namespace gpumux::modes
