// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::softgpu {

// Which of the GPUs named by `uuids` a program sees, and in which order, given
// its CUDA_VISIBLE_DEVICES (nothing: all). Entries are ordinals or beginnings of
// a UUID that fit one GPU alone; the first entry that is neither, or names a
// GPU a second time, ends the list, as in the driver (a repeated one leaves none).
std::vector<uint32_t> VisibleDevices(std::optional<std::string_view> list,
                                     const std::vector<std::string>& uuids);

}  // namespace gpumux::softgpu
