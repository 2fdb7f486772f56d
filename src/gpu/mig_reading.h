// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/mig_models.h"
#include "gpu/nvml.h"

namespace gpumux::gpu {

// The GPU as its driver tells of it, completed from the table where it says nothing: placements
// want rights, and SMs came late (each such field is marked as inferred). kConflict: MIG is off, so that the
// driver tells no profiles; else as Mig::Profiles.
Result<MigModel> ReadMigModel(Nvml& nvml, const Device& device);

}  // namespace gpumux::gpu
