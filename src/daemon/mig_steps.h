// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "core/mig/steps.h"
#include "gpu/nvml_mig.h"

namespace gpumux::daemon {

// A GPU instance with what is in it: ids of compute-instance profiles, in the order in which they were made.
struct MigPart {
  core::mig::Placed instance;
  std::vector<uint32_t> compute;

  bool operator==(const MigPart&) const = default;
};

// The steps of a change, one by one, on one GPU. Calls of NVML, which block for as long as the driver
// takes (a tenth of a second or so for each).
class MigSteps {
 public:
  MigSteps(gpu::Mig& mig, const gpu::Uuid& gpu, gpu::MigModel model)
      : mig_(mig), gpu_(gpu), model_(std::move(model)) {}

  const gpu::MigModel& model() const { return model_; }

  // What is there now, by place. Errors as Mig::Instances.
  Result<std::vector<MigPart>> Look() const;
  // What an instance that is created is divided into, where it is known; else one part of all of it.
  void Remember(const std::vector<MigPart>& parts);
  // An error says in words what the step left behind, if it was not undone whole.
  Status Do(const core::mig::Step& step);
  // Back through the same layouts; goes on after an error. What could not be put back, a clause each.
  std::vector<std::string> PutBack(const std::vector<core::mig::Step>& done);

 private:
  Status Create(core::mig::Placed instance);
  Status Destroy(core::mig::Placed instance);
  Status MakeCompute(uint32_t instance, const std::vector<uint32_t>& profiles);
  Result<uint32_t> IdOf(core::mig::Placed instance) const;

  gpu::Mig& mig_;
  gpu::Uuid gpu_;
  gpu::MigModel model_;
  std::map<core::mig::Placed, std::vector<uint32_t>> compute_of_;
};

core::mig::Layout LayoutOf(const std::vector<MigPart>& parts);

}  // namespace gpumux::daemon
