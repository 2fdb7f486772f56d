// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpumux::softgpu {

// Follows every name of a GPU.
inline constexpr char kSimulatedMark[] = " (software GPU, simulated)";
// The driver whose behaviour was recorded, and its CUDA version.
inline constexpr char kSystemDriverVersion[] = "580.159.04";
inline constexpr int kDriverVersion = 13000;

// "580.159.04": 580.
constexpr int DriverBranch(const char* version) {
  int branch = 0;
  for (; *version >= '0' && *version <= '9' && branch < 100'000; ++version)
    branch = branch * 10 + (*version - '0');
  return branch;
}
// From these on MIG devices have UUIDs of their own, and a process may use several.
inline constexpr int kMigUuidBranch = 470;
inline constexpr int kSeveralMigDevicesBranch = 570;

// Where GPU `index` would sit: 0000:<bus>:00.0.
constexpr unsigned PciBus(uint32_t index) { return 0x10 + index; }

}  // namespace gpumux::softgpu
