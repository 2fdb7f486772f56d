// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "daemon/api_server.h"
#include "daemon/events_api.h"
#include "daemon/history.h"
#include "daemon/leases.h"
#include "daemon/mig_api.h"
#include "daemon/mps_api.h"
#include "daemon/report.h"

namespace gpumux::daemon {

// What is at which path, and who may change what: reading is everybody's who
// can connect, changing a tenant its owner's, root's and the daemon's user's.
class Api {
 public:
  Api(Report& report, Machine& machine, Tenants& tenants, Leases& leases, Monitor& monitor, EventsApi& events,
      MpsApi& mps, MigApi& mig, History& history)
      : report_(report),
        machine_(machine),
        tenants_(tenants),
        leases_(leases),
        monitor_(monitor),
        events_(events),
        mps_(mps),
        mig_(mig),
        history_(history) {}

  void Handle(const ApiServer::Request& request, ApiServer::Reply reply);

 private:
  ApiServer::Response Answer(const ApiServer::Request& request);
  // NVML's figures for an answer: as they are now, or for another user as they
  // were a moment ago.
  void Refresh(const ipc::PeerIdentity& peer);
  ApiServer::Response Gpu(const ApiServer::Request& request, const std::string& rest);
  ApiServer::Response Reserve(const ApiServer::Request& request);
  ApiServer::Response Tenant(const ApiServer::Request& request, const std::string& rest);
  Status MayChange(const std::string& id, const ipc::PeerIdentity& peer) const;

  Report& report_;
  Machine& machine_;
  Tenants& tenants_;
  Leases& leases_;
  Monitor& monitor_;
  EventsApi& events_;
  MpsApi& mps_;
  MigApi& mig_;
  History& history_;
};

}  // namespace gpumux::daemon
