// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/result.h"
#include "core/promise.h"
#include "gpu/nvml.h"

namespace gpumux::modes {

// What a mode can promise and what keeps each part of the promise, in the words
// that `status`, `explain` and `promise` show. Nothing here says that it is in
// force: that is seen tenant by tenant. `promise` has each of these in Japanese
// too (src/cli/japanese.cc; a test compares).
struct Capability {
  core::Mode mode;
  bool kernels_of_several_tenants_at_once;
  bool needs_root;
  std::string_view memory_enforced_by;  // once it is seen to be in force
  std::string_view memory_guaranteed_by;
  std::string_view compute_promise;
  std::string_view compute_enforced_by;
  std::string_view neighbour_fault;  // does a neighbour's GPU fault reach me?
  std::string_view neighbour_death;  // does its death?
  std::string_view neighbour_load;   // does its load?
  std::string_view neighbour_reads;  // can it read my memory?
  std::string_view undivided;        // what of the GPU nobody divides
  std::string_view switching_cost;
  std::string_view share_option;  // what `--share` does
  std::string_view after_fault;   // what a tenant can do about a neighbour's fault; empty: nothing is needed
  // Guaranteed and greatest part of the GPU's time; negative: not promised.
  double share_min_ratio;
  double share_max_ratio;
};

// One way to share a GPU. Stateless; the daemon keeps who uses what.
class SharingMode {
 public:
  virtual ~SharingMode() = default;
  virtual const Capability& capability() const = 0;
  // kUnsupported, with what to change, if this GPU's settings forbid the mode.
  virtual Status Supports(gpu::ComputeMode compute_mode) const = 0;
};

const SharingMode& ModeOf(core::Mode mode);

// What a GPU, or an instance of a partitioned one, is like now.
struct Setting {
  gpu::ComputeMode compute_mode = gpu::ComputeMode::kUnknown;
  bool instance = false;
  bool partitioned = false;  // a GPU with MIG on
};
// kUnsupported, with what to change or do instead, if the mode cannot be had there.
Status SupportsOn(core::Mode mode, const Setting& setting);

}  // namespace gpumux::modes
