// SPDX-License-Identifier: Apache-2.0
#include "modes/turns/turns.h"

#include "modes/timeslice/timeslice.h"

namespace gpumux::modes {

const Capability& Turns::capability() const {
  static constexpr Capability kCapability{
      .mode = core::Mode::kTurns,
      .kernels_of_several_tenants_at_once = false,
      .needs_root = false,
      .memory_enforced_by = "guard",
      .memory_guaranteed_by = "ledger",
      .compute_promise = "its part of the GPU's time while others want it, all of it while nobody does",
      .compute_enforced_by = "turns",
      .neighbour_fault = "does not reach this tenant",
      .neighbour_death = "does not reach this tenant",
      .neighbour_load = "slows this tenant down: busy neighbours take turns with it",
      .neighbour_reads = "no: each process has its own GPU address space (the driver's doing)",
      .undivided = "memory bandwidth, caches and copy engines",
      .switching_cost = "two switches in 40 ms with two busy tenants",
      .share_option =
          "a minimum and a ceiling of the GPU's time, as 30%:60%; without it an equal part of what is left",
      .after_fault = "",
      .share_min_ratio = 0,
      .share_max_ratio = 1,
  };
  return kCapability;
}

Status Turns::Supports(gpu::ComputeMode compute_mode) const {
  // Contexts of several processes, as there.
  return Timeslice().Supports(compute_mode);
}

}  // namespace gpumux::modes
