// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux {

// The candidate that was most likely meant: the fewest letters changed, and at
// most a third of them; a candidate that begins with `word`, or the
// other way round, counts as near.
std::optional<std::string> Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace gpumux
