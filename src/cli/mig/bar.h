// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/mig/geometry.h"

namespace gpumux::cli {

// A GPU's memory slices from left to right, each instance over the slices it takes, and
// the slices' numbers under it, in two lines without indent:
//
//   |1g.18gb|1g.18gb|       |       |3g.71gb........................|
//   0       1       2       3       4       5       6       7
//
// A name that does not fit is cut to "1g" and what sets it apart. Needs known placements.
std::string MigBar(const gpu::MigModel& model, const core::mig::Layout& layout);

}  // namespace gpumux::cli
