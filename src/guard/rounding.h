// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// How the driver rounds what it takes from the device, measured on an H200 with
// driver 580.159.04 (docs/results): ledger and NVML then agree to the byte.

// Device memory comes in pages of 2 MiB.
inline constexpr uint64_t kDevicePageBytes = 2ull << 20;
// Requests up to 1 MiB share slabs of one page; a slab goes back with its last piece.
inline constexpr uint64_t kLargestPieceBytes = 1ull << 20;
inline constexpr uint64_t kSlabBytes = kDevicePageBytes;
// A memory pool grows by multiples of this.
inline constexpr uint64_t kPoolGrowthBytes = 32ull << 20;
// Above any device: left to the driver, which refuses it. Keeps the sums below
// from overflowing.
inline constexpr uint64_t kAbsurdBytes = 1ull << 60;

inline uint64_t RoundUp(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace gpumux::guard
