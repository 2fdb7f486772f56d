// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/mig/plan_document.h"
#include "core/mig/planner.h"
#include "gpu/nvml.h"

namespace gpumux::cli {

// GPUs to look at or plan for.
struct MigGpus {
  std::vector<core::mig::GpuState> gpus;
  std::vector<std::string> uuids;                    // by GPU; "": it is of no machine
  std::vector<uint32_t> indices;                     // by GPU, as nvidia-smi counts
  std::vector<bool> enabled;                         // by GPU: MIG mode; that of --gpu is taken to be on
  std::vector<std::unique_ptr<gpu::MigModel>> read;  // models as drivers tell of them: `gpus` point here
  std::vector<MigDivisions> divided;                 // by GPU
  std::string note;  // for people: what was left out or assumed, a line each; may be empty
  bool simulated = false;
};

// Those of --gpu, with nothing on them, or else those of this machine. Errors: as ParseMigGpus
// and Nvml::Open; kUnsupported: no GPU of this machine has MIG.
Result<MigGpus> MigGpusOf(const ParsedCommandLine& line);

Result<MigGpus> MigGpusOfThisMachine();

// Those of a machine: profiles and instances as the driver tells them where MIG is on, the
// table's where it is off (a driver tells none then).
Result<MigGpus> MigGpusOfMachine(gpu::Nvml& nvml, bool simulated);

}  // namespace gpumux::cli
