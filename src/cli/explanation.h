// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace gpumux::cli {

// The `data` of gpumux.explain/1: `tenant` as GET /v1/tenants/ID shows it,
// `status` the data of GET /v1/status. What neither of them proves is "unproven".
nlohmann::json Explanation(const nlohmann::json& tenant, const nlohmann::json& status);

// The same for people.
std::string RenderExplanation(const nlohmann::json& explanation);

}  // namespace gpumux::cli
