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

// GET /v1/history/gpus: gpu (a UUID), since_ms, until_ms, step_ms. `now_ms` for what is not said: the last
// day, in as many rows as fit into an answer. kInvalid. Any bytes may come.
Result<GpuQuery> ParseGpuQuery(std::string_view text, int64_t now_ms);
// `data` of schema gpumux.gpu-history/1.
nlohmann::ordered_json GpuAnswerJson(const std::vector<GpuStretch>& stretches, const GpuQuery& query);

// `data` of schema gpumux.history/1. `show` changes a tenant's JSON to what the viewer may see of it.
nlohmann::ordered_json AnswerJson(
    const Answer& answer,
    const std::function<nlohmann::ordered_json(nlohmann::ordered_json record, const PastTenant& past)>& show);

}  // namespace gpumux::history
