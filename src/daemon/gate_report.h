// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "daemon/tenant.h"

namespace gpumux::daemon {

// What the tenant's gates do, or it does to those of others, as its processes' pages say;
// null: it has to do with none.
nlohmann::json GateJson(const Tenant& tenant);

}  // namespace gpumux::daemon
