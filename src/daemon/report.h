// SPDX-License-Identifier: Apache-2.0
//
// What the daemon tells, as JSON: the bodies of the API and the messages to `run`.
#pragma once

#include <sys/types.h>

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/clock.h"
#include "daemon/leases.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

std::string GrantedJson(const Tenant& tenant, const Machine& machine, const std::string& session_socket,
                        const std::string& guard_library,
                        const std::map<std::string, std::string>& environment = {});
std::string QueuedJson(size_t position, const core::Queue::Waiting& waiting, const Tenants& tenants,
                       const Clock& clock);
// A tenant's JSON as `viewer` may see it: of other users' only root and the daemon's user see how they were
// called, where, and their labels.
nlohmann::ordered_json TenantForViewer(nlohmann::ordered_json tenant, uid_t viewer, uid_t owner);
std::string SummaryJson(const Tenant& tenant, const Machine& machine);

// `data` is JSON.
std::string EnvelopeOf(const char* schema, const Clock& clock, bool simulated, const std::string& data);

// The API's bodies, envelope included.
class Report {
 public:
  Report(const Machine& machine, const Tenants& tenants, const Leases& leases, const Clock& clock)
      : machine_(machine), tenants_(tenants), leases_(leases), clock_(clock) {}

  // `viewer` is who asks (TenantForViewer).
  std::string Status(uid_t viewer) const;
  std::string TenantList(uid_t viewer, bool ended_too) const;
  // Nullopt: no such tenant.
  std::optional<std::string> TenantDetail(uid_t viewer, const std::string& id) const;
  std::string Version() const;
  std::string Done() const;
  static std::string ErrorBody(const Error& error);

 private:
  const Machine& machine_;
  const Tenants& tenants_;
  const Leases& leases_;
  const Clock& clock_;
};

}  // namespace gpumux::daemon
