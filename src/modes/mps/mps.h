// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "modes/sharing_mode.h"

namespace gpumux::modes {

// NVIDIA's Multi-Process Service: kernels of several tenants run at once, under
// one server, which is one fault domain (docs/design/mps.md).
class Mps final : public SharingMode {
 public:
  const Capability& capability() const override;
  Status Supports(gpu::ComputeMode compute_mode) const override;
};

}  // namespace gpumux::modes
