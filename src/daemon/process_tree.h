// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
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

// Whether a file with this in its name is mapped by the process; true where that
// cannot be seen: a process of somebody else, or one that is about to end and
// has lost its memory already while the driver still has some of it.
bool MayMap(pid_t pid, std::string_view file);
// A guard of ours was set up in it, by this daemon or one that is gone.
bool MayHaveProcessPage(pid_t pid);

// Through the descriptor, so never to another process with the same pid.
void SendSignal(const UniqueFd& pidfd, int signal);

}  // namespace gpumux::daemon
