// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"
#include "cli/terminal.h"

namespace gpumux::cli {

// `gpumux status` for people, from the body of GET /v1/status (or from the same
// made of NVML alone). Unknown is shown as "–", never as 0. kInternal when the
// text is not such a body.
Result<std::string> RenderStatus(const std::string& json, const Terminal& terminal);

// `gpumux ps`: one row a process, from the body of GET /v1/tenants.
Result<std::string> RenderProcesses(const std::string& json, const Terminal& terminal);

}  // namespace gpumux::cli
