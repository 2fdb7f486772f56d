// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpumux::history {

// What stands behind '?' in a URL: (key, value), percent-decoded. kInvalid: a broken escape, or a part
// without '='. Any bytes may come.
Result<std::vector<std::pair<std::string, std::string>>> ParseQueryText(std::string_view text);

}  // namespace gpumux::history
