// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/tenant.h"

namespace gpumux::daemon {

// The processes and all their living descendants, each with a descriptor that
// names it for good.
std::vector<std::pair<ProcessName, UniqueFd>> OpenTree(const std::vector<ProcessName>& roots);

// Through the descriptor, so never to another process with the same pid.
void SendSignal(const UniqueFd& pidfd, int signal);

}  // namespace gpumux::daemon
