// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "daemon/tenant.h"

namespace gpumux::daemon {

// Of all processes that the tenant has or had, as their pages say; nullopt: it has to do with no gates.
std::optional<GatePage::Figures> SumGates(const Tenant& tenant);

// What the tenant's gates do, or it does to those of others, as its processes' pages say;
// null: it has to do with none.
nlohmann::json GateJson(const Tenant& tenant);

}  // namespace gpumux::daemon
