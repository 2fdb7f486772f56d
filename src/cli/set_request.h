// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"

namespace gpumux::cli {

// Parts of the body of POST /v1/tenants/ID/set, from what a person wrote:
// "10GiB:20GiB", "2h". Errors name the option of `gpumux set`.
Result<nlohmann::json> MemoryRequest(const std::string& range);
Result<nlohmann::json> TimeRequest(const std::string& time);

}  // namespace gpumux::cli
