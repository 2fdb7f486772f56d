// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "daemon/tenant.h"

namespace gpumux::daemon {

// `turns` of the tenant's JSON; null: it has not taken any.
nlohmann::json TurnsJson(const Tenant& tenant);

// Why no turns keep its part of the GPU's time now; empty: they do.
std::string WhyNoTurns(const Tenant& tenant);

}  // namespace gpumux::daemon
