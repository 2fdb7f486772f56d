// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpumux::gpu {

// What a GPU, or an instance of one that is partitioned (MIG), is called everywhere in
// gpumux: ordinals change with CUDA_VISIBLE_DEVICES and from boot to boot, the UUID does not.
struct Uuid {
  std::array<uint8_t, 16> bytes{};  // as cuDeviceGetUuid_v2 returns it
  bool instance = false;            // how it is written; no part of what it is

  bool operator==(const Uuid& other) const { return bytes == other.bytes; }
  auto operator<=>(const Uuid& other) const { return bytes <=> other.bytes; }

  // "GPU-" or "MIG-" and 36 characters, as NVML and nvidia-smi write it.
  std::string ToString() const;
};

// Exactly the form of ToString(), in either case; else nullopt.
std::optional<Uuid> ParseUuid(std::string_view text);

}  // namespace gpumux::gpu
