// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "daemon/refusal.h"

namespace gpumux::daemon {

// `refusals.last` of a tenant's JSON.
nlohmann::ordered_json RefusalJson(const Refusal& refusal);

}  // namespace gpumux::daemon
