// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <tl/expected.hpp>

#include "config/configuration.h"

namespace gpumux::config {

// Whose members may connect to the machine's daemon (`daemon.socket_group`); nullopt: it is not
// set. Asks the user database, which may take its time. A problem: that has no such group.
tl::expected<std::optional<gid_t>, Problem> SocketGroupOf(const Settings& settings);

}  // namespace gpumux::config
