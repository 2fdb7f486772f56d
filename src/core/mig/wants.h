// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mig/geometry.h"

namespace gpumux::core::mig {

// Tenants that are alike and want a place on a MIG instance.
struct Want {
  std::string name;
  uint32_t count = 1;
  // Either the very profile, by name or id, or what the instance has to have at least.
  std::string profile = {};
  uint64_t bytes = 0;  // of GPU memory
  double share = 0;    // of the SMs of the whole GPU with MIG off, in [0, 1]
  // May share its instance with others that may: memory and shares of those on one
  // instance add up. Otherwise it has one of its own.
  bool shares = false;
};

// The part of the whole GPU's SMs that an instance has. By compute slices where SMs are not known.
double ShareOf(const gpu::MigModel& model, const gpu::MigProfile& profile);

// Whether an instance of this profile would do for one tenant of `want`. Memory that is not known does for
// none that asks for memory.
bool Serves(const gpu::MigModel& model, const gpu::MigProfile& profile, const Want& want);

// The smallest profile that would do; null if none does.
const gpu::MigProfile* SmallestFor(const gpu::MigModel& model, const Want& want);

// Why none does, in words: "needs 200.0 GiB; the largest instance of H200, 7g.141gb, has 139.8 GiB".
std::string WhyNone(const gpu::MigModel& model, const Want& want);

}  // namespace gpumux::core::mig
