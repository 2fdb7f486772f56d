// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/tenant.h"

namespace gpumux::daemon {

// All tenants that live, and the last that ended. Knows which process belongs
// to whom.
class Tenants {
 public:
  static constexpr size_t kMaxEnded = 100;
  static constexpr size_t kMaxMembers = 4096;  // of one tenant

  Tenant& Add(std::unique_ptr<Tenant> tenant);
  void MoveToEnded(const std::string& id);

  Tenant* Find(const std::string& id);
  const Tenant* FindAny(const std::string& id) const;  // ended ones too
  std::map<std::string, std::unique_ptr<Tenant>>& live() { return live_; }
  const std::map<std::string, std::unique_ptr<Tenant>>& live() const { return live_; }
  const std::deque<std::unique_ptr<Tenant>>& ended() const { return ended_; }

  // The living member that is this process.
  Member* FindMember(const ProcessName& process, Tenant** tenant);
  // By pid alone, for NVML's lists, which know no start times; also one that
  // died and whose bytes are not back yet.
  Member* FindMemberByPid(pid_t pid, Tenant** tenant);
  Member& AddMember(Tenant& tenant, const ProcessName& process);
  void RemoveMember(Tenant& tenant, core::ProcessKey key);

  // Whose process is this? Walks from it to its ancestors until a known member
  // or a `run` that holds a lease; `hint` decides between several leases of one
  // `run`, and alone where no ancestor is left and the uid is the tenant's.
  Tenant* FindOwner(pid_t pid, uid_t uid, const std::string& hint);

  static std::string NewId();

 private:
  std::map<std::string, std::unique_ptr<Tenant>> live_;
  std::deque<std::unique_ptr<Tenant>> ended_;
  std::multimap<pid_t, std::pair<Tenant*, core::ProcessKey>> by_pid_;
  core::ProcessKey next_key_ = 1;
};

// The process's name, or nullopt if it is gone.
std::optional<ProcessName> NameProcess(pid_t pid);

}  // namespace gpumux::daemon
