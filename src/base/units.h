// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;
inline constexpr uint64_t kTiB = 1024 * kGiB;

// An amount of memory as a person writes it: "10GiB", "512 MiB", "1.5G", "40%".
// K, M, G and T are binary with or without "B" or "iB" (as documented: `10G`
// means GiB). A unit is required. Exactly one of the two members is set.
struct MemorySize {
  uint64_t bytes = 0;
  double ratio = 0;  // of the GPU, in (0, 1]; for "40%"
};

// kInvalid with the reason for: empty, no unit, negative, zero, not a number,
// above 2^60 bytes, above 100%, trailing text. Fractions of a byte round down.
Result<MemorySize> ParseMemorySize(std::string_view text);

// "10GiB" or "10GiB:20GiB": what is guaranteed, and the limit above it.
struct MemoryRange {
  MemorySize guaranteed;
  std::optional<MemorySize> limit;  // unset: as `guaranteed`
};

// kInvalid also for a limit below the guarantee, as far as the two can be compared.
Result<MemoryRange> ParseMemoryRange(std::string_view text);

// "30s", "10m", "1h30m", "250ms"; a bare number is refused (which unit?).
Result<std::chrono::milliseconds> ParseDuration(std::string_view text);

// "61.2 GiB", "512 MiB", "0 B": the largest unit that leaves at least 1, one
// decimal from GiB on.
std::string FormatBytes(uint64_t bytes);
// As one would ask for it, "9GiB" or "1536MiB", and no less than `bytes`: whole GiB, below
// four of them quarters.
std::string FormatRoundedUp(uint64_t bytes);
// "1.5 s", "12m41s", "250 ms".
std::string FormatDuration(std::chrono::nanoseconds duration);

}  // namespace gpumux
