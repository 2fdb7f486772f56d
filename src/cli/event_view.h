// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/terminal.h"

namespace gpumux::cli {

// One event of the daemon's as a line for people, in local time.
std::string EventLine(const nlohmann::json& event, const Terminal& terminal);

}  // namespace gpumux::cli
