// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/endpoints.h"
#include "cli/run_options.h"

namespace gpumux::cli {

// For a program of mode mig: an instance that is free and holds it, if that can be had. "": one is
// there, or nothing can be made, so that the daemon's own answer is the right one. Else, with `make`, what
// was made ("made 1g.18gb at 3 on GPU 0"), or why it could not be; without, the command that would make it.
// Instances in use are never touched.
std::string InstanceFor(const RunOptions& options, const Endpoints& endpoints, bool make);

}  // namespace gpumux::cli
