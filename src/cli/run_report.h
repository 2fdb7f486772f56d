// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace gpumux::cli {

// The closing line of `run` from the daemon's RunSummary, for example
// "done in 12m41s, peak 11.2 GiB of 12.0 GiB, 0 refusals". `took` is what `run`
// measured itself. An allocation that was refused is named with its size and
// with what limited it. Any bytes may come; what is missing is left out.
std::string ClosingLine(const std::string& summary_json, std::chrono::nanoseconds took);

// Whether the program failed because others took its work on the GPU along: then
// why, else empty.
std::string LostByOthers(const std::string& summary_json);

// The same when the daemon is gone.
std::string ClosingLineWithoutRecord(std::chrono::nanoseconds took);

// {"schema":"gpumux.run/1",...,"data":{...}}: the summary in the envelope of all JSON output.
std::string RunJson(const std::string& summary_json, bool simulated);

// {"error":{"code","message","hint"}}
std::string ErrorJson(const std::string& code, const std::string& message, const std::string& hint);

}  // namespace gpumux::cli
