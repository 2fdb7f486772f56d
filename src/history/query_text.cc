// SPDX-License-Identifier: Apache-2.0
#include "history/query_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace gpumux::history {

namespace {

std::optional<std::string> Decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned value = 0;
    const char* const begin = text.data() + i + 1;
    if (text.size() - i < 3 || std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2)
      return std::nullopt;
    out += static_cast<char>(value);
    i += 2;
  }
  return out;
}

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> ParseQueryText(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equal = pair.find('=');
    const auto key = Decode(pair.substr(0, equal));
    const auto value = Decode(equal == std::string_view::npos ? "" : pair.substr(equal + 1));
    if (equal == std::string_view::npos || !key || !value)
      return Fail(Code::kInvalid, fmt::format("\"{}\" is no part of a query", pair.substr(0, 60)));
    pairs.emplace_back(*key, *value);
  }
  return pairs;
}

}  // namespace gpumux::history
