// SPDX-License-Identifier: Apache-2.0
#include "daemon/user_name.h"

#include <pwd.h>
#include <unistd.h>

namespace gpumux::daemon {

std::string UserName(uid_t uid) {
  char buffer[4096];
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) == 0 && found) return found->pw_name;
  return std::to_string(uid);
}

bool IsStranger(uid_t uid) { return uid != 0 && uid != ::getuid(); }

}  // namespace gpumux::daemon
