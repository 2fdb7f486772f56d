// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"
#include "gpu/source.h"

namespace gpumux::cli {

// Where a daemon may be, the most fitting first: the one of the tenant that
// this runs in, the user's own, the machine's (with the software GPU, whose
// state is the user's, only where GPUMUX_SYSTEM_DIR names it).
struct Endpoints {
  gpu::GpuSource source;
  RuntimePaths own;
  std::vector<RuntimePaths> all;
};
Result<Endpoints> FindEndpoints();

// The places themselves; nothing is looked at. `session` is the session socket
// of the tenant that this runs in, or empty; `machine` is GPUMUX_SYSTEM_DIR, or empty.
std::vector<RuntimePaths> PlacesOfDaemons(const std::string& session, const std::string& machine,
                                          const RuntimePaths& own, bool simulated);

// True if the environment chose the software GPU explicitly.
bool SoftwareGpuWasAskedFor();

}  // namespace gpumux::cli
