// SPDX-License-Identifier: Apache-2.0
#include "config/configuration.h"

#include <fmt/format.h>

#include "base/nearest.h"

namespace gpumux::config {
namespace {

// A file full of nonsense is not worth a million lines.
constexpr size_t kMaxProblems = 100;

bool IsWithin(const Path& path, const Path& table) {
  return path.size() > table.size() && std::equal(table.begin(), table.end(), path.begin());
}

Problem Unknown(const std::string& file, const TomlEntry& entry) {
  const bool table = std::holds_alternative<TableStart>(entry.value);
  const auto nearest = Nearest(entry.path.back(), NamesBeside(entry.path));
  Path meant = entry.path;
  if (nearest) meant.back() = *nearest;
  return {file, entry.key_at,
          fmt::format("there is no {} {}", table ? "table" : "key", FormatPath(entry.path).substr(0, 200)),
          nearest ? fmt::format("did you mean {}?", FormatPath(meant).substr(0, 200))
                  : "gpumux config example shows all there are"};
}

}  // namespace

void ReadText(const std::string& file, std::string_view text, Settings& settings,
              std::vector<Problem>& problems) {
  const auto entries = ParseToml(text);
  if (!entries) {
    problems.push_back(entries.error());
    problems.back().file = file;
    return;
  }
  const Path* unknown_table = nullptr;
  for (const TomlEntry& entry : *entries) {
    if (problems.size() >= kMaxProblems) return;
    if (unknown_table && IsWithin(entry.path, *unknown_table)) continue;
    const bool table = std::holds_alternative<TableStart>(entry.value);
    if (table && IsTable(entry.path)) continue;
    const Key* key = FindKey(entry.path);
    if (!key && !table && IsTable(entry.path)) {
      problems.push_back({file, entry.key_at, fmt::format("{} is a table", FormatPath(entry.path)),
                          fmt::format("write [{}]", FormatPath(entry.path))});
      continue;
    }
    if (!key) {
      problems.push_back(Unknown(file, entry));
      if (table) unknown_table = &entry.path;
      continue;
    }
    const auto value = CheckValue(*key, entry.value);
    if (!value) {
      problems.push_back({file, entry.value_at,
                          fmt::format("{}: {}", FormatPath(entry.path), value.error().message),
                          value.error().hint});
      if (table) unknown_table = &entry.path;
      continue;
    }
    settings[entry.path] = {
        .key = key, .value = *value, .from = Setting::From::kFile, .origin = file, .at = entry.value_at};
  }
}

void ReadVariable(const Key& key, std::string_view text, Settings& settings, std::vector<Problem>& problems) {
  const auto value = ParseVariable(key, text);
  if (!value) {
    problems.push_back({key.variable, {}, value.error().message, value.error().hint});
    return;
  }
  settings[key.path] = {
      .key = &key, .value = *value, .from = Setting::From::kVariable, .origin = key.variable, .at = {}};
}

const Setting* Find(const Settings& settings, const Path& path) {
  const auto it = settings.find(path);
  return it == settings.end() ? nullptr : &it->second;
}

std::string Problem::ToString() const {
  std::string out = file;
  if (at.line > 0) out += fmt::format(":{}:{}", at.line, at.column);
  out += ": " + message;
  return hint.empty() ? out : out + "; " + hint;
}

}  // namespace gpumux::config
