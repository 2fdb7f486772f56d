// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "daemon/api_server.h"
#include "daemon/mig_service.h"

namespace gpumux::daemon {

// `gpumux mig`: /v1/mig tells what is under way and kept; below it apply, cancel, mode and forget. Reading is
// everybody's who can connect, changing root's and the daemon's user's.
class MigApi {
 public:
  MigApi(MigService& mig, const Machine& machine, const Clock& clock)
      : mig_(mig), machine_(machine), clock_(clock) {}

  static bool Takes(std::string_view path) { return path == "/v1/mig" || path.starts_with("/v1/mig/"); }
  // A change is answered when it is over.
  void Handle(const ApiServer::Request& request, ApiServer::Reply reply);

 private:
  std::string Envelope(const std::string& data) const;
  void Apply(const ApiServer::Request& request, ApiServer::Reply reply);

  MigService& mig_;
  const Machine& machine_;
  const Clock& clock_;
};

// The body of a change:
//   {"gpu":TEXT,"instances":[{"profile":ID,"start":N}, ...],"drain":"refuse"|"wait"|"stop","wait_seconds":N,
//    "dry_run":BOOL,"keep":BOOL}
// all but `instances` optional. kInvalid names the member. Any bytes may come.
Result<MigChangeRequest> ParseMigChangeRequest(std::string_view body);

}  // namespace gpumux::daemon
