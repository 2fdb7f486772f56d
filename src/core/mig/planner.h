// SPDX-License-Identifier: Apache-2.0
//
// Which instances to make, and who gets which. On one GPU every legal layout is looked at, so
// that no other places more, or as many with less waste; on several GPUs a good way is searched for.
// What runs is never given up: an instance in use stays, or is made elsewhere
// with the same profile, and the plan says who has to be stopped for that.
// docs/design/mig.md has the order in which plans are compared, and why. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/mig/steps.h"
#include "core/mig/wants.h"

namespace gpumux::core::mig {

struct GpuState {
  std::string name;                      // "GPU 0", for people
  const gpu::MigModel* model = nullptr;  // outlives the plan
  std::vector<Present> present = {};
};

// How good a plan is, on one GPU or summed over several: of two plans the better one
// is the better in the first member in which they differ.
struct Score {
  uint32_t placed = 0;     // tenants; more is better
  uint32_t disturbed = 0;  // users of instances that have to be made elsewhere; less is better, and so on:
  uint32_t destroyed = 0;  // instances, in use or idle: somebody made them
  uint32_t memory_slices = 0;   // of instances that tenants get
  uint32_t compute_slices = 0;  // of these
  uint32_t special = 0;         // of these, with an attribute: engines that others may want
  uint32_t created = 0;         // instances
  uint32_t open_places = 0;     // starts of all profiles at which one could still be created; more is better

  bool BetterThan(const Score& other) const;
  Score& operator+=(const Score& other);
  bool operator==(const Score&) const = default;
};

// An instance that tenants get.
struct Given {
  Placed instance;
  std::vector<size_t> whom;  // indices of wants, one for each tenant
  bool existing = false;
};
// An instance in use that has to be made elsewhere.
struct Moved {
  Placed from, to;
  std::vector<std::string> users;
};

struct GpuPlan {
  Layout layout;  // all that will be there
  std::vector<Given> given;
  std::vector<Moved> moved;
  Score score;
  bool exact = true;  // no layout was left out, and no way to share an instance
};

struct Unplaced {
  size_t want = 0;
  uint32_t count = 0;
  std::string why;
};

struct Plan {
  std::vector<GpuPlan> gpus;  // as the GPUs that were given
  std::vector<Unplaced> unplaced;
  Score score;
  // No plan places more: all are placed, or there is one GPU and nothing was left out.
  bool most_placed = true;
};

struct PlanOptions {
  bool may_disturb = true;  // false: instances in use stay where they are
};

// kUnsupported: a GPU's placements are not known. kInvalid: what is said to be present cannot be, or there is
// no GPU, or more tenants than kMostTenants.
Result<Plan> MakePlan(const std::vector<GpuState>& gpus, const std::vector<Want>& wants,
                      const PlanOptions& options = {});

inline constexpr uint32_t kMostTenants = 1000;

}  // namespace gpumux::core::mig
