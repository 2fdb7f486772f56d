// SPDX-License-Identifier: Apache-2.0
//
// TOML as a flat list with positions. The one place that sees the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/problem.h"

namespace gpumux::config {

using Path = std::vector<std::string>;  // "quota", "user", "ann", "memory"

// A value of a type that no key has: what it is called.
struct OtherValue {
  std::string name;  // "an array"
};
struct TableStart {};
using TomlValue = std::variant<bool, int64_t, std::string, TableStart, OtherValue>;

// A key with its value, or a table, which stands before what is in it.
struct TomlEntry {
  Path path;
  TomlValue value;
  Position key_at, value_at;
};

inline constexpr size_t kMaxTomlBytes = 1 << 20;

// In the order of the text. Any bytes may come. A file that is no TOML gives its
// first fault alone: what follows it cannot be told.
tl::expected<std::vector<TomlEntry>, Problem> ParseToml(std::string_view text);

// The path as TOML writes it: parts that need quotes have them.
std::string FormatPath(const Path& path);
// A text as a TOML value, with quotes.
std::string QuoteToml(std::string_view text);

}  // namespace gpumux::config
