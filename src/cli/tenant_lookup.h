// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "cli/api_client.h"

namespace gpumux::cli {

// kEndedToo: of the last tenants that ended, too, if none that lives is meant.
enum class Among { kLive, kEndedToo };

// The tenant with this id, or the only one with this name, as the daemon shows
// it. Of several ended ones the latest. kNotFound; kConflict: several live ones
// have the name (the hint lists their ids).
Result<nlohmann::json> FindTenant(const ApiClient& client, const std::string& word, Among among);

struct ChangedTenant {
  std::string id, name;
  std::string answer;  // of the daemon
};

// Finds the daemon and a live tenant, and asks for `action` ("stop", "set") on it.
// Errors as FindTenant, ApiClient::Connect and Post.
Result<ChangedTenant> ChangeTenant(const std::string& word, const std::string& action,
                                   const nlohmann::json& request);

// Ids and names that may stand for a live tenant, each once and only such as
// need no quoting in a shell.
Result<std::vector<std::string>> TenantWords(const ApiClient& client);

}  // namespace gpumux::cli
