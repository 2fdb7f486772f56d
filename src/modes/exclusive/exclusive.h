// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "modes/sharing_mode.h"

namespace gpumux::modes {

// One tenant has the GPU to itself; everything that can be promised is
// guaranteed to it.
class Exclusive final : public SharingMode {
 public:
  const Capability& capability() const override;
  Status Supports(gpu::ComputeMode compute_mode) const override;
};

}  // namespace gpumux::modes
