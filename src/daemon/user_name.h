// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace gpumux::daemon {

// What the system's databases say of a user. They may be on another machine
// that does not answer.
struct Account {
  std::string name;                 // its number where it has none
  std::vector<std::string> groups;  // by name, each once
  bool known = true;                // false: no answer yet
};

// Remembered for a minute; waits for a database at most a second, and less if
// an earlier answer can stand in. Any thread.
Account AccountOf(uid_t uid);

// The account's name, or its number where it has none.
std::string UserName(uid_t uid);

// Neither root nor the daemon's own user.
bool IsStranger(uid_t uid);

}  // namespace gpumux::daemon
