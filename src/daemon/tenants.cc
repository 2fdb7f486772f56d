// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants.h"

#include <sys/random.h>

#include "base/process.h"

namespace gpumux::daemon {

namespace {
// No real process tree is deeper; a loop in hostile /proc data ends here.
constexpr int kMaxAncestors = 256;
}  // namespace

std::string_view Name(LostWork::Cause cause) {
  switch (cause) {
    case LostWork::Cause::kNeighbour:
      return "neighbour-fault";
    case LostWork::Cause::kOwnFault:
      return "own-fault";
    case LostWork::Cause::kUnknown:
      return "unknown-fault";
    case LostWork::Cause::kServer:
      return "mps-server";
  }
  return "?";
}

std::string_view Name(TenantState state) {
  switch (state) {
    case TenantState::kStarting:
      return "starting";
    case TenantState::kRunning:
      return "running";
    case TenantState::kStopping:
      return "stopping";
    case TenantState::kEnded:
      return "ended";
  }
  return "?";
}

std::optional<ProcessName> NameProcess(pid_t pid) {
  const auto stat = ReadProcessStat(pid);
  if (!stat) return std::nullopt;
  return ProcessName{pid, stat->start_time};
}

Tenant& Tenants::Add(std::unique_ptr<Tenant> tenant) {
  Tenant& added = *tenant;
  live_[added.id] = std::move(tenant);
  return added;
}

void Tenants::MoveToEnded(const std::string& id) {
  const auto it = live_.find(id);
  if (it == live_.end()) return;
  while (!it->second->members.empty()) RemoveMember(*it->second, it->second->members.begin()->first);
  ended_.push_back(std::move(it->second));
  live_.erase(it);
  if (ended_.size() > kMaxEnded) ended_.pop_front();
}

Tenant* Tenants::Find(const std::string& id) {
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : it->second.get();
}

const Tenant* Tenants::FindAny(const std::string& id) const {
  if (const auto it = live_.find(id); it != live_.end()) return it->second.get();
  for (const auto& tenant : ended_) {
    if (tenant->id == id) return tenant.get();
  }
  return nullptr;
}

Member* Tenants::FindMember(const ProcessName& process, Tenant** tenant) {
  const auto [first, last] = by_pid_.equal_range(process.pid);
  for (auto it = first; it != last; ++it) {
    Member& member = it->second.first->members.at(it->second.second);
    if (member.process != process || member.died) continue;
    *tenant = it->second.first;
    return &member;
  }
  return nullptr;
}

Member* Tenants::FindMemberByPid(pid_t pid, Tenant** tenant) {
  Member* found = nullptr;
  const auto [first, last] = by_pid_.equal_range(pid);
  for (auto it = first; it != last; ++it) {
    Member& member = it->second.first->members.at(it->second.second);
    // The living one has the pid now; a dead one with the same pid is older.
    if (found && member.died) continue;
    *tenant = it->second.first;
    found = &member;
  }
  return found;
}

Member& Tenants::AddMember(Tenant& tenant, const ProcessName& process) {
  const core::ProcessKey key = next_key_++;
  Member& member = tenant.members[key];
  member.key = key;
  member.process = process;
  member.gpus.resize(tenant.shares.size());
  by_pid_.emplace(process.pid, std::pair(&tenant, key));
  return member;
}

void Tenants::RemoveMember(Tenant& tenant, core::ProcessKey key) {
  const auto it = tenant.members.find(key);
  if (it == tenant.members.end()) return;
  const auto [first, last] = by_pid_.equal_range(it->second.process.pid);
  for (auto entry = first; entry != last; ++entry) {
    if (entry->second.second != key) continue;
    by_pid_.erase(entry);
    break;
  }
  if (it->second.gate) tenant.gates_of_dead.Add(it->second.gate->Read());
  tenant.members.erase(it);
}

Tenant* Tenants::FindOwner(pid_t pid, uid_t uid, const std::string& hint) {
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    const auto stat = ReadProcessStat(pid);
    if (!stat) break;
    const ProcessName name{pid, stat->start_time};
    Tenant* tenant = nullptr;
    if (FindMember(name, &tenant)) return tenant;
    for (auto& [id, each] : live_) {
      if (each->child == name || each->left_behind.contains(name)) return each.get();
      if (each->run != name) continue;
      if (!tenant || id == hint || (tenant->id != hint && each->admitted > tenant->admitted))
        tenant = each.get();
    }
    if (tenant) return tenant;
    pid = stat->parent;
  }
  // Its ancestors are gone (a program that put itself into the background).
  Tenant* hinted = Find(hint);
  return hinted && hinted->uid == uid ? hinted : nullptr;
}

std::string Tenants::NewId() {
  // Without letters that are mistaken for digits or each other.
  static constexpr char kAlphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";
  unsigned char random[12] = {};
  if (::getrandom(random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) std::abort();
  std::string id = "t-";
  for (const unsigned char byte : random) id += kAlphabet[byte & 31];
  return id;
}

}  // namespace gpumux::daemon
