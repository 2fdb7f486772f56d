// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "modes/sharing_mode.h"

namespace gpumux::modes {

// Tenants that are busy have the GPU in turn, by what each is promised of its
// time: their gates are opened and closed for that (core/turns.h).
class Turns final : public SharingMode {
 public:
  const Capability& capability() const override;
  Status Supports(gpu::ComputeMode compute_mode) const override;
};

}  // namespace gpumux::modes
