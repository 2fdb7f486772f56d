// SPDX-License-Identifier: Apache-2.0
//
// GET /metrics: what the daemon knows, for Prometheus (docs/guide/metrics.md).
#pragma once

#include <sys/types.h>

#include <string>

#include "base/clock.h"
#include "daemon/api_server.h"
#include "daemon/events.h"
#include "daemon/leases.h"
#include "daemon/machine.h"
#include "daemon/metrics_totals.h"
#include "daemon/monitor.h"
#include "daemon/tenants.h"
#include "daemon/turn_waits.h"

namespace gpumux::daemon {

class Metrics {
 public:
  // `show_labels`: the tenants' labels that name pods are for everybody, else for who may see them in
  // `status`.
  Metrics(const Machine& machine, const Tenants& tenants, const Leases& leases, Monitor& monitor,
          const EventLog& events, const TurnWaits& turn_waits, const Clock& clock, const bool& show_labels);

  void Granted(const Tenant& tenant) { totals_.Granted(tenant.waited_seconds); }
  // Before it is forgotten.
  void Ended(const Tenant& tenant);

  // On the API's socket.
  ApiServer::Response Answer(const ApiServer::Request& request);
  // On TCP, where nothing else is served and nobody knows who asks.
  ApiServer::Response AnswerOnTcp(const ApiServer::Request& request);

  // As `viewer` may see it.
  std::string Text(uid_t viewer);

 private:
  TenantCounters CountersOf(const Tenant& tenant) const;
  MetricsText::Labels LabelsOf(const Tenant& tenant, uid_t viewer) const;
  void AddDaemon(MetricsText& text) const;
  void AddTotals(MetricsText& text) const;
  void AddGpus(MetricsText& text) const;
  void AddTenant(MetricsText& text, const Tenant& tenant, uid_t viewer) const;
  void AddTenantOnGpus(MetricsText& text, const Tenant& tenant, const MetricsText::Labels& labels) const;

  const Machine& machine_;
  const Tenants& tenants_;
  const Leases& leases_;
  Monitor& monitor_;
  const EventLog& events_;
  const TurnWaits& turn_waits_;
  const Clock& clock_;
  const bool& show_labels_;
  const std::chrono::system_clock::time_point started_;
  MetricsTotals totals_;
};

}  // namespace gpumux::daemon
