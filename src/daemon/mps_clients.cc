// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps_clients.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace gpumux::daemon {

namespace {

constexpr Time kAskEvery = std::chrono::seconds(10);
// A process that ends its context may do so between the list and what it tells us.
constexpr unsigned kProof = 2;

}  // namespace

std::set<core::ProcessKey> MpsClients::WithContext(const MpsDomain& domain) const {
  std::set<core::ProcessKey> keys;
  for (const auto& [id, tenant] : tenants_.live()) {
    // A client whose work is lost, or is being ended, may be none any more.
    if (!tenant->ViaMps() || tenant->lost_work || tenant->draining) continue;
    for (const auto& [key, member] : tenant->members) {
      if (member.died || !member.page || member.page->FirstError() != 0) continue;
      for (size_t slot = 0; slot < member.gpus.size(); ++slot) {
        const bool here = domain.Serves(machine_.gpus()[tenant->gpus[slot]]->device.uuid);
        if (here && member.gpus[slot].contexts > 0) keys.insert(key);
      }
    }
  }
  return keys;
}

void MpsClients::Tick() {
  std::erase_if(domains_, [&](const auto& known) {
    return std::ranges::none_of(mps_.domains(), [&](const auto& each) { return each->dir() == known.first; });
  });
  for (const auto& domain : mps_.domains()) {
    if (domain->state() != MpsDomain::State::kActive) continue;
    Domain& known = domains_[domain->dir()];
    auto before = WithContext(*domain);
    std::erase_if(known.processes, [&](const auto& process) { return !before.contains(process.first); });
    const bool all_listed = std::ranges::all_of(before, [&](core::ProcessKey key) {
      const auto found = known.processes.find(key);
      return found != known.processes.end() && (found->second.listed || found->second.missing >= kProof);
    });
    if (before.empty() || known.asking || (all_listed && clock_.Now() - known.asked < kAskEvery)) continue;
    known.asking = true;
    known.asked = clock_.Now();
    domain->AskClients([this, dir = domain->dir(), before = std::move(before)](const auto& listed) {
      const auto its = domains_.find(dir);
      if (its == domains_.end()) return;
      its->second.asking = false;
      if (listed) Took(dir, before, *listed);
    });
  }
}

void MpsClients::Took(const std::string& dir, const std::set<core::ProcessKey>& before,
                      const std::set<pid_t>& listed) {
  const auto domain =
      std::ranges::find_if(mps_.domains(), [&](const auto& each) { return each->dir() == dir; });
  if (domain == mps_.domains().end()) return;
  const auto now = WithContext(**domain);
  for (const auto& [id, tenant] : tenants_.live()) {
    for (const auto& [key, member] : tenant->members) {
      if (!before.contains(key) || !now.contains(key)) continue;
      Process& process = domains_[dir].processes[key];
      process.listed = listed.contains(member.process.pid);
      process.missing = process.listed ? 0 : process.missing + 1;
      if (process.missing == kProof)
        LogWarning("tenant {}: pid {} is no client of the MPS server (pid {})", id, member.process.pid,
                   (*domain)->server_pid());
    }
  }
}

std::string MpsClients::WhyNotServed(const Tenant& tenant) const {
  for (const auto& [dir, domain] : domains_) {
    for (const auto& [key, process] : domain.processes) {
      const auto member = tenant.members.find(key);
      if (process.missing < kProof || member == tenant.members.end() || member->second.died) continue;
      return fmt::format("pid {} is no client of its MPS server, and so without the limits there",
                         member->second.process.pid);
    }
  }
  return "";
}

}  // namespace gpumux::daemon
