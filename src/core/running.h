// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  // All of its bytes are back by then, by its time limit. Nullopt: nobody knows.
  std::optional<std::chrono::nanoseconds> ends_by;
};

}  // namespace gpumux::core
