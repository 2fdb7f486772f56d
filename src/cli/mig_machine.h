// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "core/mig/planner.h"
#include "gpu/nvml.h"

namespace gpumux::cli {

// GPUs to look at or plan for.
struct MigGpus {
  std::vector<core::mig::GpuState> gpus;
  std::vector<std::string> uuids;  // by GPU; "": it is of no machine
  std::deque<gpu::MigModel> read;  // models as their drivers tell of them: `gpus` may point here
  std::string note;                // for people: what was left out or assumed, a line each; may be empty
  bool simulated = false;
};

// Those of --gpu, with nothing on them, or else those of this machine. Errors: as ParseMigGpus
// and Nvml::Open; kUnsupported: no GPU of this machine has MIG.
Result<MigGpus> MigGpusOf(const ParsedCommandLine& line);

// Those of a machine: profiles and instances as the driver tells them where MIG is on, the
// table's where it is off (a driver tells none then).
Result<MigGpus> MigGpusOfMachine(gpu::Nvml& nvml, bool simulated);

}  // namespace gpumux::cli
