// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "daemon/daemon.h"

namespace gpumux::daemon {

// Puts into `settings` what the configuration says, and has it read again at
// SIGHUP. Whose files are read hangs on `settings.for_everyone`. `on_demand`: the
// daemon was started by a command, and leaves when it is idle. kInvalid: something
// in a file is wrong; all of it is in the log then.
Status Configure(DaemonSettings& settings, bool on_demand);

}  // namespace gpumux::daemon
