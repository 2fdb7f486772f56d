// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command_line.h"

namespace gpumux::cli {

// The verbs of `gpumux mig`, each with its options judged already (mig.cc).
int MigStatus(const ParsedCommandLine& line);
int MigProfiles(const ParsedCommandLine& line);
int MigPlan(const ParsedCommandLine& line);

}  // namespace gpumux::cli
