// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/mig/plan_document.h"
#include "cli/terminal.h"

namespace gpumux::cli {

// A GPU and its profiles, for people. What was taken from another GPU of the family has a "~".
std::string MigProfilesText(const gpu::MigModel& model, const Terminal& terminal);
// GPUs of the table, one a line.
std::string MigModelsText(const Terminal& terminal);

// A plan for people: instances and for whom, what is lost, the steps, who has to be stopped, and what was not
// placed.
Result<std::string> MigPlanText(const MigPlanned& planned, const Terminal& terminal);

}  // namespace gpumux::cli
