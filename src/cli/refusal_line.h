// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace gpumux::cli {

// Why a tenant got no memory the last time it got none, and what to do, from its
// JSON: for example "its limit of 10.0 GiB was the reason, of which 0.6 GiB were in
// use; ask for more: --mem 13GiB". The figures are of the GPU that refused. `gpus`,
// of /v1/status: where they have room for a tenant that runs, it is `gpumux set` that
// is named; null if they are not known. Empty: there was no refusal. Any bytes may come.
std::string RefusalReason(const nlohmann::json& tenant, const nlohmann::json& gpus);

// "2 refusals (the last of 12.0 GiB on GPU 1)"; "0 refusals".
std::string RefusalCount(const nlohmann::json& refusals);

}  // namespace gpumux::cli
