// SPDX-License-Identifier: Apache-2.0
#include "config/toml_text.h"

#include <fmt/format.h>

#include <algorithm>

// Compiled into this file, without exceptions: Debian's library is a shared one,
// and programs of gpumux must also run where it is not installed. Few levels, so
// that what is nested cannot exhaust the stack.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 16
#include <toml++/toml.h>

namespace gpumux::config {
namespace {

// Each dot of a key is a table within a table, which the library reads and
// destroys by recursion.
constexpr long kMaxDotsInLine = 16;

Position Of(const toml::source_position& at) {
  return {static_cast<unsigned>(at.line), static_cast<unsigned>(at.column)};
}

std::optional<Problem> Unreadable(std::string_view text) {
  if (text.size() > kMaxTomlBytes)
    return Problem{{}, {}, fmt::format("is larger than {} KiB", kMaxTomlBytes / 1024), ""};
  unsigned number = 1;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const size_t first = line.find_first_not_of(" \t");
    const bool comment = first != std::string_view::npos && line[first] == '#';
    if (!comment && std::count(line.begin(), line.end(), '.') > kMaxDotsInLine)
      return Problem{{}, {number, 1}, fmt::format("has more than {} dots in one line", kMaxDotsInLine), ""};
    at = end + 1;
  }
  return std::nullopt;
}

TomlValue ValueOf(const toml::node& node) {
  if (const auto* boolean = node.as_boolean()) return boolean->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* text = node.as_string()) return text->get();
  if (node.is_array()) return OtherValue{"an array"};
  if (node.is_floating_point()) return OtherValue{"a number with a fraction"};
  return OtherValue{"a date or time"};
}

void Flatten(const toml::table& table, Path& path, std::vector<TomlEntry>& out) {
  for (const auto& [key, node] : table) {
    path.emplace_back(key.str());
    const toml::table* inner = node.as_table();
    out.push_back({path, inner ? TomlValue(TableStart{}) : ValueOf(node), Of(key.source().begin),
                   Of(node.source().begin)});
    if (inner) Flatten(*inner, path, out);
    path.pop_back();
  }
}

bool IsBare(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

}  // namespace

tl::expected<std::vector<TomlEntry>, Problem> ParseToml(std::string_view text) {
  if (auto problem = Unreadable(text)) return tl::unexpected(std::move(*problem));
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    const toml::parse_error& error = result.error();
    return tl::unexpected(
        Problem{{}, Of(error.source().begin), std::string(error.description().substr(0, 300)), ""});
  }
  std::vector<TomlEntry> entries;
  Path path;
  Flatten(result.table(), path, entries);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TomlEntry& a, const TomlEntry& b) { return a.key_at < b.key_at; });
  return entries;
}

std::string QuoteToml(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string FormatPath(const Path& path) {
  std::string out;
  for (const std::string& part : path)
    out += (out.empty() ? "" : ".") + (IsBare(part) ? part : QuoteToml(part));
  return out;
}

}  // namespace gpumux::config
