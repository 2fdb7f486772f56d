// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::softgpu {

struct VisibleGpu {
  std::string uuid;
  int sms = 0;
};

// Which of `gpus`, given by PCI bus, a program sees, and in which order, given
// its CUDA_VISIBLE_DEVICES (nothing: all) and CUDA_DEVICE_ORDER. The order comes
// first, and ordinals in the list count in it: PCI_BUS_ID is by bus, anything
// else is FASTEST_FIRST, here by SMs and by bus among equals. Entries are
// ordinals or beginnings of a UUID that fit one GPU alone; the first entry that
// is neither, as a MIG device's, or names a GPU a second time, ends the list,
// as in the driver (a repeated one leaves none).
std::vector<uint32_t> VisibleDevices(std::optional<std::string_view> list,
                                     std::optional<std::string_view> order,
                                     const std::vector<VisibleGpu>& gpus);

}  // namespace gpumux::softgpu
