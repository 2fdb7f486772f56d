// SPDX-License-Identifier: Apache-2.0
//
// Every key that a configuration may have. Reading, `config show`, the example
// and the reference come from this table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "config/toml_text.h"

namespace gpumux::config {

enum class Type {
  kBoolean,
  kInteger,      // from `least` to `most`
  kSize,         // "60GiB", no part of a GPU
  kMemoryRange,  // "10GiB:20GiB", as --mem takes it
  kDuration,     // "30s"
  kWait,         // true, false, or how long: "10m"
  kWord,         // one of `words`
  kLoopback,     // "127.0.0.1:9835"
  kGroup,        // the name of a group of users; whether there is one the user database says
};

struct Key {
  Path path;  // quota.user.NAME.memory; NAME stands for any
  Type type;
  const char* help;     // one sentence without its full stop
  const char* unset;    // what holds without it
  const char* example;  // as TOML writes the value
  std::vector<const char*> words = {};
  int64_t least = 0, most = 0;
  const char* variable = nullptr;  // of the environment, which goes before files
};

// The part of a path that stands for any name.
inline constexpr const char* kAnyName = "NAME";

std::span<const Key> AllKeys();

// What is in the key's table, for people.
const char* TableHelp(const Key& key);

// The key at `path`; null if there is none.
const Key* FindKey(const Path& path);
// A table that has keys, or tables of such, in it.
bool IsTable(const Path& path);
// What may stand instead of the last part of `path`, which is unknown.
std::vector<std::string> NamesBeside(const Path& path);

// A value that has been found right for its key.
using Value = std::variant<bool, int64_t, std::string>;

// kInvalid says what is wrong with it.
Result<Value> CheckValue(const Key& key, const TomlValue& value);
// The same of a variable of the environment.
Result<Value> ParseVariable(const Key& key, std::string_view text);

std::string FormatValue(const Value& value);  // as TOML writes it
std::string_view Name(Type type);             // "size", "duration", ...

}  // namespace gpumux::config
