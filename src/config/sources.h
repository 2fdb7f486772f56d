// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/configuration.h"

namespace gpumux::config {

enum class Reader {
  kUser,           // commands, and the daemon of one user: the machine's files, then the user's
  kMachineDaemon,  // the machine's files alone, and only if nobody but root can write them
};

// What the process finds its files by. The default is the real one.
struct Surroundings {
  std::function<const char*(const char*)> variable;
  std::string system_dir = "/etc/gpumux";
  static Surroundings OfThisProcess();
};

struct Loaded {
  Settings settings;
  std::vector<Problem> problems;
  // In the order they were read, a later one over an earlier one.
  std::vector<std::string> files;
};

// Variables over the user's file over the machine's conf.d over its config.toml.
// GPUMUX_CONFIG names one file instead of all of these.
Loaded Load(Reader reader, const Surroundings& surroundings = Surroundings::OfThisProcess());

// One file by itself. A problem if there is none.
Loaded LoadFile(const std::string& path, Reader reader = Reader::kUser);

// All problems as one error, kInvalid.
Error ErrorOf(const std::vector<Problem>& problems);

}  // namespace gpumux::config
