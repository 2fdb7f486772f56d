// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/terminal.h"

namespace gpumux::cli {

// Tenants of schema gpumux.history/1 for people, newest last, and a line of totals.
std::string RenderHistory(const nlohmann::json& tenants, const nlohmann::json& totals,
                          const Terminal& terminal);

// Stretches of schema gpumux.gpu-history/1 for people, oldest first.
std::string RenderGpuHistory(const nlohmann::json& stretches, const Terminal& terminal);
std::string GpuHistoryCsv(const nlohmann::json& stretches);

// The same as CSV (RFC 4180), one line a tenant, with a header; times in UTC, sizes in bytes.
std::string HistoryCsv(const nlohmann::json& tenants);

}  // namespace gpumux::cli
