// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::cli {

// "TERM", "SIGTERM", "term" or "15". kInvalid otherwise.
Result<int> ParseSignal(const std::string& text);
// "SIGTERM"; the number where it has no name.
std::string SignalName(int signal);

}  // namespace gpumux::cli
