// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "modes/sharing_mode.h"

namespace gpumux::modes {

// An instance of a partitioned GPU (MIG) for one tenant alone: its multiprocessors, its memory
// and its part of the cache are nobody else's, by the hardware.
class Mig final : public SharingMode {
 public:
  const Capability& capability() const override;
  Status Supports(gpu::ComputeMode compute_mode) const override;
};

}  // namespace gpumux::modes
