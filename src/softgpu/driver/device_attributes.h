// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "softgpu/protocol.h"

namespace gpumux::softgpu {

// The value of a CUdevice_attribute, by number; nothing for a number that the
// driver of CUDA 13.0 does not know.
std::optional<int> DeviceAttribute(int attribute, const Description& description);

}  // namespace gpumux::softgpu
