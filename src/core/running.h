// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/promise.h"

namespace gpumux::core {

// A tenant that has a lease, as far as it matters to those who wait.
struct Running {
  struct On {
    gpu::Uuid gpu;
    uint64_t guaranteed_bytes = 0;
    uint64_t charged_bytes = 0;           // by the ledger: guaranteed, or used if that is more
    std::optional<uint64_t> limit_bytes;  // nullopt: whatever is promisable
  };
  std::string name;  // for people
  std::string user;
  std::vector<std::string> groups;
  Mode mode = Mode::kTimeslice;
  std::vector<On> on;
  // As of EndsBy().
  std::optional<std::chrono::nanoseconds> ends_by;
};

// By when all bytes of a tenant are back: by its time limit, and once it is being
// stopped by its SIGKILL. Nullopt: nobody knows.
inline std::optional<std::chrono::nanoseconds> EndsBy(std::chrono::nanoseconds started,
                                                      std::optional<std::chrono::nanoseconds> time_limit,
                                                      std::optional<std::chrono::nanoseconds> killed_at) {
  std::optional<std::chrono::nanoseconds> ends_by;
  if (time_limit) ends_by = started + *time_limit + kEndingTakes;
  if (killed_at) ends_by = std::min(ends_by.value_or(*killed_at + kReturnTakes), *killed_at + kReturnTakes);
  return ends_by;
}

}  // namespace gpumux::core
