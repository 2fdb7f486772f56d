// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/mig/geometry.h"

namespace gpumux::core::mig {

// An instance that is there now.
struct Present {
  Placed instance;
  std::vector<std::string> users = {};  // who has something running on it: "train", "pid 812 (python3)"
};

struct Step {
  enum class What { kDestroy, kCreate } what;
  Placed instance;

  bool operator==(const Step&) const = default;
};

// How one layout becomes another.
struct Change {
  std::vector<Step> steps;
  Layout kept;
};

// The steps from what is there to `wanted`. An instance that is in both, profile and
// place, is kept: no step touches it. Everything that goes, goes first, and what is made
// is made by size: after every step a legal layout stands, so that none can be refused
// for want of room. kConflict: a step would remove an instance that is in use, each
// of these with its users. kInvalid, kConflict: `wanted` is not legal (CheckLayout).
Result<Change> StepsTo(const gpu::MigModel& model, const std::vector<Present>& present, const Layout& wanted);

// What undoes `done`, in the order in which it has to be done: it goes back through
// the same layouts.
std::vector<Step> Undo(const std::vector<Step>& done);

// "destroy 1g.18gb at 0".
std::string ToString(const gpu::MigModel& model, const Step& step);

}  // namespace gpumux::core::mig
