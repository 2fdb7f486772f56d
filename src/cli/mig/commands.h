// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/command_line.h"
#include "cli/mig/plan_document.h"

namespace gpumux::cli {

// The verbs of `gpumux mig`, each with its options judged already (mig.cc).
int MigStatus(const ParsedCommandLine& line);
int MigProfiles(const ParsedCommandLine& line);
int MigPlan(const ParsedCommandLine& line);
// These change something (mig_apply.cc).
int MigApply(const ParsedCommandLine& line);
int MigDestroy(const ParsedCommandLine& line);
int MigEnable(const ParsedCommandLine& line);
int MigDisable(const ParsedCommandLine& line);
int MigForget(const ParsedCommandLine& line);
int MigCancel(const ParsedCommandLine& line);
int MigImport(const ParsedCommandLine& line);
int MigExport(const ParsedCommandLine& line);

// Prints a plan and gives the exit status: 0 if all of it fits, else 1.
int ShowMigPlan(const MigPlanned& planned, const std::string& note, bool json);

}  // namespace gpumux::cli
