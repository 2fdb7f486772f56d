// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpumux::softgpu {

// Follows every name of a GPU.
inline constexpr char kSimulatedMark[] = " (software GPU, simulated)";
// The driver whose behaviour was recorded, and its CUDA version.
inline constexpr char kSystemDriverVersion[] = "580.159.04";
inline constexpr int kDriverVersion = 13000;

// Where GPU `index` would sit: 0000:<bus>:00.0.
constexpr unsigned PciBus(uint32_t index) { return 0x10 + index; }

}  // namespace gpumux::softgpu
