// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/mig/planner.h"
#include "core/mig/seating.h"

namespace gpumux::core::mig {

// The best plan for one GPU, for one list of tenants after another. What does not
// depend on them (every legal layout, what it costs to come to it) is worked out once.
class OneGpu {
 public:
  // kUnsupported, kInvalid: as MakePlan.
  static Result<OneGpu> Of(const GpuState& gpu, const PlanOptions& options);

  // `counts`: how many tenants of each want.
  GpuPlan Best(const std::vector<Want>& wants, const std::vector<uint32_t>& counts) const;

 private:
  // A layout that what runs can be in.
  struct Way {
    Layout layout;
    std::vector<Seat> seats;  // for tenants, ordered
    std::vector<Moved> moved;
    Score cost;  // what does not depend on who gets what
  };

  explicit OneGpu(const GpuState& gpu) : model_(gpu.model) {}
  std::optional<Way> WayTo(const Layout& layout, const GpuState& gpu) const;

  const gpu::MigModel* model_;
  std::vector<Way> ways_;  // of those with the same seats the best
  bool every_layout_ = true;
};

}  // namespace gpumux::core::mig
