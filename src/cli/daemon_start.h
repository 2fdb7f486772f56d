// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/paths.h"
#include "base/result.h"
#include "cli/api_client.h"

namespace gpumux::cli {

// Starts `gpumuxd --idle-exit 30` (beside this program) for the user and waits,
// at most 10 s, until its session socket accepts. Detached: own session, no
// descriptor of ours, its messages go to the log. Two callers at once start one
// daemon: they take turns by a lock. kUnavailable names the log.
Status StartUserDaemon(const RuntimePaths& paths);

// A daemon that runs, or else the user's own, which is started.
Result<ApiClient> ConnectOrStart(const Endpoints& endpoints);

}  // namespace gpumux::cli
