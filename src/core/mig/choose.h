// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/mig/steps.h"

namespace gpumux::core::mig {

// Of all legal layouts with exactly these instances (a profile's id for each) the one that moves
// least: fewest instances in use go, then fewest others, then as many starts as can be are left for what
// comes next. kConflict: no legal layout has them together, and why not. kInvalid: no such profile.
Result<Layout> ChooseLayout(const gpu::MigModel& model, const std::vector<Present>& present,
                            std::vector<uint32_t> profiles);

}  // namespace gpumux::core::mig
