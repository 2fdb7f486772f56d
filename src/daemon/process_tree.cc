// SPDX-License-Identifier: Apache-2.0
#include "daemon/process_tree.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "base/process.h"
#include "daemon/pages.h"
#include "daemon/tenants.h"
#include "gpumux/abi/session.h"

namespace gpumux::daemon {

std::vector<std::pair<ProcessName, UniqueFd>> OpenTree(const std::vector<ProcessName>& roots) {
  std::multimap<pid_t, ProcessName> children;
  for (const pid_t pid : ListProcesses()) {
    const auto stat = ReadProcessStat(pid);
    if (stat) children.emplace(stat->parent, ProcessName{pid, stat->start_time});
  }
  std::vector<ProcessName> todo = roots;
  std::set<ProcessName> seen;
  std::vector<std::pair<ProcessName, UniqueFd>> tree;
  while (!todo.empty()) {
    const ProcessName process = todo.back();
    todo.pop_back();
    // Never the daemon itself, init, or whatever a wrong root might name.
    if (process.pid <= 1 || process.pid == ::getpid() || !seen.insert(process).second) continue;
    auto pidfd = OpenPidfd(process.pid);
    if (!pidfd || NameProcess(process.pid) != process) continue;
    tree.emplace_back(process, std::move(*pidfd));
    const auto [first, last] = children.equal_range(process.pid);
    for (auto it = first; it != last; ++it) todo.push_back(it->second);
  }
  return tree;
}

std::vector<ProcessName> FindByEnvironment(const std::string& tenant_id, uid_t uid) {
  const std::string entry = std::string(GPUMUX_ENV_TENANT "=") + tenant_id;
  std::vector<ProcessName> found;
  for (const pid_t pid : ListProcesses()) {
    if (pid == ::getpid() || ProcessOwner(pid) != uid) continue;
    const auto environment = ReadEnvironment(pid);
    if (std::find(environment.begin(), environment.end(), entry) == environment.end()) continue;
    const auto stat = ReadProcessStat(pid);
    if (stat && stat->state != 'Z') found.push_back({pid, stat->start_time});
  }
  return found;
}

bool MayMap(pid_t pid, std::string_view file) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  bool any = false;
  for (std::string line; std::getline(maps, line); any = true) {
    if (line.find(file) != std::string::npos) return true;
  }
  return !any;
}

bool MayHaveProcessPage(pid_t pid) { return MayMap(pid, fmt::format("/memfd:{}", kProcessPageName)); }

void SendSignal(const UniqueFd& pidfd, int signal) {
  (void)::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
}

}  // namespace gpumux::daemon
