// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/mig/file.h"
#include "cli/mig/machine.h"
#include "cli/mig/plan_document.h"

namespace gpumux::cli {

// The plan that makes GPUs as a configuration says: exactly its instances, on the places that keep
// most of what is there. A GPU that no entry is for keeps what it has. What is in use and not in the
// configuration is an error (kConflict), as is what the table does not know. What does not fit is in
// `plan.unplaced`.
Result<MigPlanned> PlanOfConfig(const std::vector<MigFileEntry>& config, const MigGpus& machine);

// GPUs as a plan or a machine has them.
struct MigExported {
  uint32_t index = 0;  // as nvidia-smi counts
  const gpu::MigModel* model = nullptr;
  bool enabled = true;
  core::mig::Layout layout;
  MigDivisions divided = {};
};

// The configuration that says the same: GPUs that are alike share an entry.
Result<std::vector<MigFileEntry>> ConfigOf(const std::vector<MigExported>& gpus);

}  // namespace gpumux::cli
