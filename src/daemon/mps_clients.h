// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>

#include "daemon/mps_service.h"

namespace gpumux::daemon {

// Which processes of tenants the servers themselves list as their clients. One that is
// client of another server says of itself that it is under MPS, and has other limits.
class MpsClients {
 public:
  MpsClients(MpsService& mps, Machine& machine, Tenants& tenants, const Clock& clock)
      : mps_(mps), machine_(machine), tenants_(tenants), clock_(clock) {}

  // Asks the servers: soon for whom none has listed yet, else now and then.
  void Tick();
  // A process of the tenant that no server lists; empty: none is known.
  std::string WhyNotServed(const Tenant& tenant) const;

 private:
  // Its processes with a context on one of the domain's GPUs.
  std::set<core::ProcessKey> WithContext(const MpsDomain& domain) const;
  // `before`: those who had a context before the list was asked for. Of others it proves nothing.
  void Took(const std::string& dir, const std::set<core::ProcessKey>& before, const std::set<pid_t>& listed);

  struct Process {
    bool listed = false;
    unsigned missing = 0;  // lists in a row
  };
  struct Domain {
    bool asking = false;
    Time asked{};
    std::map<core::ProcessKey, Process> processes;
  };
  MpsService& mps_;
  Machine& machine_;
  Tenants& tenants_;
  const Clock& clock_;
  std::map<std::string, Domain> domains_;  // by directory
};

}  // namespace gpumux::daemon
