// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/keys.h"
#include "config/problem.h"
#include "config/toml_text.h"

namespace gpumux::config {

struct Setting {
  const Key* key = nullptr;
  Value value;
  // Where it was set: a file and a place in it, or the name of a variable.
  enum class From { kFile, kVariable } from = From::kFile;
  std::string origin;
  Position at;
};

// What was set, by path. What is not in it has the key's default.
using Settings = std::map<Path, Setting>;

// Takes what `text`, the content of `file`, sets, over what is there. What is
// wrong is left out and told, all of it as far as it can be.
void ReadText(const std::string& file, std::string_view text, Settings& settings,
              std::vector<Problem>& problems);

// The same of one variable of the environment.
void ReadVariable(const Key& key, std::string_view text, Settings& settings, std::vector<Problem>& problems);

const Setting* Find(const Settings& settings, const Path& path);

}  // namespace gpumux::config
