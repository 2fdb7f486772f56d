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
// is neither ends the list, as in the driver; one that is named twice leaves none.
std::vector<uint32_t> VisibleDevices(std::optional<std::string_view> list,
                                     std::optional<std::string_view> order,
                                     const std::vector<VisibleGpu>& gpus);

// A compute instance that a program could see.
struct VisibleInstance {
  uint32_t gpu = 0;           // in the list of GPUs
  uint32_t gpu_instance = 0;  // its id
  std::string uuid;           // "MIG-..."
  std::string old_name;       // "MIG-GPU-.../1/0"
};
// What a program sees: a GPU, or an instance (both count from 0 in their lists).
struct VisibleDevice {
  bool is_instance = false;
  uint32_t index = 0;

  bool operator==(const VisibleDevice&) const = default;
};

// The same where MIG is enabled on GPUs (`mig`, by GPU). Such a GPU is its instances, in their order. As soon
// as one instance is seen, no whole GPU is; and of the instances the first alone, or (`several`, from R570
// on) the first of each GPU instance, up to 64.
std::vector<VisibleDevice> VisibleDevicesWithMig(std::optional<std::string_view> list,
                                                 std::optional<std::string_view> order,
                                                 const std::vector<VisibleGpu>& gpus,
                                                 const std::vector<bool>& mig,
                                                 const std::vector<VisibleInstance>& instances, bool several);

}  // namespace gpumux::softgpu
