// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "core/mig/wants.h"

namespace gpumux::core::mig {

// An instance that tenants could have.
struct Seat {
  Placed instance;
  bool existing = false;  // it is there already, and nobody uses it
};

struct Seating {
  uint32_t placed = 0;                    // tenants
  std::vector<std::vector<size_t>> whom;  // by seat: indices of wants, one for each tenant
  bool exact = true;                      // false: the search was cut short
};

// Puts as many tenants as can be on the instances, and of those ways the one that uses
// the fewest memory slices, then the fewest compute slices, then the fewest instances with
// an attribute. nullopt: an instance that would have to be made has no use, so that a layout
// without it is better. `counts`: how many of each want.
std::optional<Seating> SeatTenants(const gpu::MigModel& model, const std::vector<Seat>& seats,
                                   const std::vector<Want>& wants, const std::vector<uint32_t>& counts);

}  // namespace gpumux::core::mig
