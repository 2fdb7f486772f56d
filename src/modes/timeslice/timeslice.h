// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "modes/sharing_mode.h"

namespace gpumux::modes {

// The driver's own time-slicing: every tenant's kernels run alone on the GPU
// for a slice, in turn.
class Timeslice final : public SharingMode {
 public:
  const Capability& capability() const override;
  Status Supports(gpu::ComputeMode compute_mode) const override;
};

}  // namespace gpumux::modes
