// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "daemon/tenant.h"

namespace gpumux::daemon {

// The processes and all their living descendants, each with a descriptor that
// names it for good.
std::vector<std::pair<ProcessName, UniqueFd>> OpenTree(const std::vector<ProcessName>& roots);

// Living processes of `uid` whose environment names the tenant. Finds what put
// itself into the background: it is below none of the tenant's processes any more.
std::vector<ProcessName> FindByEnvironment(const std::string& tenant_id, uid_t uid);

// Whether a guard of ours is in force in the process, by a daemon that may be
// gone: it has a process page mapped.
bool HasProcessPage(pid_t pid);

// Through the descriptor, so never to another process with the same pid.
void SendSignal(const UniqueFd& pidfd, int signal);

}  // namespace gpumux::daemon
