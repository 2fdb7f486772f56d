// SPDX-License-Identifier: Apache-2.0
//
// Where GPU instances can be on one GPU. A GPU has memory slices, in a row, and
// compute slices, which are only counted; an instance takes the memory slices
// [start, start + size) and its profile's number of compute slices. A set of
// instances is legal if
//   * each begins where its profile may,
//   * no two have a memory slice in common,
//   * their compute slices are no more than the GPU's,
//   * no profile has more instances than it may have, nor the GPU,
//   * one instance at most has "+me", and beside "+me.all" there are only "-me".
// So a part of a legal set is legal as well: steps.h and the planner rest on it.
// docs/design/mig.md tells where the rules come from. Pure; any thread.
#pragma once

#include <compare>
#include <vector>

#include "base/result.h"
#include "gpu/mig_models.h"

namespace gpumux::core::mig {

// A GPU instance at its place. By id, never by name.
struct Placed {
  uint32_t start = 0;    // its first memory slice
  uint32_t profile = 0;  // the id of its profile

  auto operator<=>(const Placed&) const = default;
};
// Of one GPU; functions here take it in any order and give it by `start`.
using Layout = std::vector<Placed>;

// More than any GPU has; a driver that tells of more is not believed.
inline constexpr uint32_t kMostSlices = 64;
// AllLayouts ends here. The GPUs of the table have 2319 at most.
inline constexpr size_t kMostLayouts = 50'000;

// kUnsupported: this GPU's placements are in no document, so that only its driver knows; or
// what its driver tells of them cannot be.
Status CheckPlacementsKnown(const gpu::MigModel& model);

// May `instance` be created beside those of `layout`? kInvalid: no such profile.
// kConflict: why not, in words ("3g.71gb needs placement 0 or 4; ...").
Status CanCreate(const gpu::MigModel& model, const Layout& layout, Placed instance);
// The same, wherever there is a place for it.
Status CanCreateSomewhere(const gpu::MigModel& model, const Layout& layout, uint32_t profile);
// Where one may be created beside those of `layout`, ascending.
std::vector<uint32_t> StartsLeft(const gpu::MigModel& model, const Layout& layout, uint32_t profile);
// The same of all profiles, counted: how open a layout is to what may come.
uint32_t OpenPlaces(const gpu::MigModel& model, const Layout& layout);
// How many instances of this profile alone could still be created.
uint32_t RemainingCapacity(const gpu::MigModel& model, const Layout& layout, uint32_t profile);

// kInvalid or kConflict: the first instance that cannot be there, and why.
Status CheckLayout(const gpu::MigModel& model, const Layout& layout);

// Every legal set, the empty one too, each once, in ascending order; the first kMostLayouts found
// of a GPU that has more. Nothing for a GPU whose placements are not known.
std::vector<Layout> AllLayouts(const gpu::MigModel& model);

// Of a profile that the model has.
const gpu::MigProfile& ProfileOf(const gpu::MigModel& model, uint32_t id);
// "1g.18gb at 0"; "profile 99 at 0" of one that the model has not.
std::string Name(const gpu::MigModel& model, Placed instance);

// Sizes, in compute slices, that a compute instance of a GPU instance of `slices` can have.
std::vector<uint32_t> ComputeInstanceSizes(uint32_t slices);
// Whether compute instances of these sizes fit into an instance of this profile together. kConflict,
// kInvalid.
Status CheckComputeInstances(const gpu::MigProfile& profile, const std::vector<uint32_t>& sizes);

}  // namespace gpumux::core::mig
