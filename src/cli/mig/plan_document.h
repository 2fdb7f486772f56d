// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/mig/planner.h"

namespace gpumux::cli {

// How GPU instances are divided into compute instances, in compute slices: those that are not
// here have one that is as large as they are.
using MigDivisions = std::map<core::mig::Placed, std::vector<uint32_t>>;

// A plan with what it was made for.
struct MigPlanned {
  std::vector<core::mig::GpuState> gpus;
  std::vector<std::string> uuids;  // by GPU; "": no GPU of this machine
  std::vector<core::mig::Want> wants;
  core::mig::Plan plan;
  bool simulated = false;                  // the GPUs are the software GPU's
  std::vector<bool> enabled = {};          // by GPU: MIG mode; empty: all of them
  std::vector<MigDivisions> divided = {};  // by GPU; empty: none
};

// The steps of one GPU. What runs on instances that are moved has to be stopped before the first.
Result<core::mig::Change> MigStepsOf(const core::mig::GpuState& gpu, const core::mig::GpuPlan& plan);

// The `data` of gpumux.mig-plan/1 (docs/schemas/mig-plan.schema.json).
Result<nlohmann::json> MigPlanJson(const MigPlanned& planned);

// What a plan in that form, with its envelope, wants of each GPU.
struct MigPlanOfGpu {
  std::string name, uuid;  // uuid "": of no certain GPU
  std::string model;       // as FindMigModel takes it
  bool enabled = true;
  core::mig::Layout layout;
  MigDivisions divided = {};
};
// kInvalid with the place ("data.gpus[0].instances[1].start: ..."). No profile or place is
// checked against a GPU here: CheckLayout and StepsTo do that, against the GPU it is applied to.
Result<std::vector<MigPlanOfGpu>> ReadMigPlan(const std::string& text);

}  // namespace gpumux::cli
