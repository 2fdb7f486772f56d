// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "history/store.h"

namespace gpumux::history {

inline constexpr size_t kMostInAnAnswer = 1000;

// A query as it stands behind '?' of GET /v1/history: owner, name, outcome, label=KEY=VALUE, since_ms,
// until_ms, limit, before_ms and before_id (the last row of the answer before). kInvalid. Any bytes may come.
Result<Query> ParseQuery(std::string_view text);

// `data` of schema gpumux.history/1. `show` changes a tenant's JSON to what the viewer may see of it.
nlohmann::ordered_json AnswerJson(
    const Answer& answer,
    const std::function<nlohmann::ordered_json(nlohmann::ordered_json record, const PastTenant& past)>& show);

}  // namespace gpumux::history
