// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

namespace gpumux::daemon {

// The account's name, or its number where it has none.
std::string UserName(uid_t uid);

// Neither root nor the daemon's own user.
bool IsStranger(uid_t uid);

}  // namespace gpumux::daemon
