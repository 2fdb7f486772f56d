// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

namespace gpumux::cli {

// The Japanese of a sentence, or of a template of fmt, whose English is `english`.
// The English is the key, so that a sentence that was changed has no old translation.
std::optional<std::string_view> Japanese(std::string_view english);

}  // namespace gpumux::cli
