// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "daemon/api_server.h"
#include "daemon/events.h"
#include "daemon/monitor.h"
#include "daemon/mps_service.h"

namespace gpumux::daemon {

// `gpumux mps`: /v1/mps, and below it start, stop and adopt. Reading is everybody's who
// can connect, changing root's and the daemon's user's: a control daemon is for all tenants.
class MpsApi {
 public:
  MpsApi(MpsService& mps, Machine& machine, Monitor& monitor, EventLog& events, const Clock& clock)
      : mps_(mps), machine_(machine), monitor_(monitor), events_(events), clock_(clock) {}

  static bool Takes(std::string_view path) { return path == "/v1/mps" || path.starts_with("/v1/mps/"); }
  // Start and adopt are answered when the server is ready, or will never be.
  void Handle(const ApiServer::Request& request, ApiServer::Reply reply);

 private:
  void Start(const ApiServer::Request& request, ApiServer::Reply reply);
  void Stop(const ApiServer::Request& request, const ApiServer::Reply& reply);
  void Adopt(const ApiServer::Request& request, ApiServer::Reply reply);
  Result<std::vector<gpu::Uuid>> GpusNamed(const std::vector<std::string>& names) const;
  Status MayStart(const std::vector<gpu::Uuid>& gpus, bool exclusive);
  Result<MpsRecord> RecordOf(pid_t pid, uid_t by) const;
  std::string Body() const;
  void Note(std::string text, const std::vector<gpu::Uuid>& gpus, uid_t by);
  std::string Names(const std::vector<gpu::Uuid>& gpus) const;

  MpsService& mps_;
  Machine& machine_;
  Monitor& monitor_;
  EventLog& events_;
  const Clock& clock_;
};

}  // namespace gpumux::daemon
