// SPDX-License-Identifier: Apache-2.0
#include "daemon/api.h"

#include <fmt/format.h>

#include "base/process.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

constexpr Time kFreshForStrangers = std::chrono::milliseconds(100);

ApiServer::Response Failure(const Error& error) { return {HttpStatus(error.code), Report::ErrorBody(error)}; }

ApiServer::Response NoSuchPath(const ApiServer::Request& request) {
  return Failure({Code::kNotFound, fmt::format("there is no {} {} here", request.method, request.path), ""});
}

}  // namespace

void Api::Refresh(const ipc::PeerIdentity& peer) {
  if (IsStranger(peer.uid))
    monitor_.RefreshAllIfOlder(kFreshForStrangers);
  else
    monitor_.RefreshAll();
}

void Api::Handle(const ApiServer::Request& request, ApiServer::Reply reply) {
  if (request.method == "GET" && request.path == "/v1/events")
    return events_.Handle(request, std::move(reply));
  if (request.method == "GET" && History::Takes(request.path))
    return history_.Handle(request, std::move(reply));
  if (MpsApi::Takes(request.path)) {
    if (request.method == "GET") Refresh(request.peer);
    return mps_.Handle(request, std::move(reply));
  }
  if (MigApi::Takes(request.path)) return mig_.Handle(request, std::move(reply));
  reply(Answer(request));
}

ApiServer::Response Api::Answer(const ApiServer::Request& request) {
  const bool get = request.method == "GET";
  if (get && request.path == "/v1/status") {
    Refresh(request.peer);
    return {200, report_.Status(request.peer.uid)};
  }
  if (get && request.path == "/v1/version") return {200, report_.Version()};
  if (get && request.path == "/v1/tenants")
    return {200, report_.TenantList(request.peer.uid, request.query == "all=1")};
  if (request.method == "POST" && request.path == "/v1/reservations") return Reserve(request);
  constexpr std::string_view kGpus = "/v1/gpus/";
  if (request.method == "POST" && request.path.starts_with(kGpus))
    return Gpu(request, request.path.substr(kGpus.size()));
  constexpr std::string_view kTenants = "/v1/tenants/";
  if (request.path.starts_with(kTenants)) return Tenant(request, request.path.substr(kTenants.size()));
  return NoSuchPath(request);
}

ApiServer::Response Api::Tenant(const ApiServer::Request& request, const std::string& rest) {
  const size_t slash = rest.find('/');
  const std::string id = rest.substr(0, slash);
  const std::string action = slash == std::string::npos ? "" : rest.substr(slash + 1);
  if (request.method == "GET" && action.empty()) {
    Refresh(request.peer);
    if (auto body = report_.TenantDetail(request.peer.uid, id)) return {200, std::move(*body)};
    return Failure({Code::kNotFound, "there is no tenant of that id", "see them with: gpumux ps"});
  }
  if (request.method == "POST" && action == "stop") {
    if (Status may = MayChange(id, request.peer); !may) return Failure(may.error());
    const auto stop = ParseStopRequest(request.body);
    if (!stop) return Failure(stop.error());
    const Status stopped =
        leases_.Stop(id, *stop, "stopped by " + UserName(request.peer.uid), request.peer.uid);
    if (!stopped) return Failure(stopped.error());
    return {200, report_.Done()};
  }
  if (request.method == "POST" && action == "set") {
    if (Status may = MayChange(id, request.peer); !may) return Failure(may.error());
    const auto change = ParseChange(request.body);
    if (!change) return Failure(change.error());
    if (Status set = leases_.Set(id, *change, request.peer.uid); !set) return Failure(set.error());
    return {200, report_.TenantDetail(request.peer.uid, id).value_or(report_.Done())};
  }
  if (request.method == "POST" && action == "release") {
    if (Status may = MayChange(id, request.peer); !may) return Failure(may.error());
    if (Status released = leases_.Release(id, request.peer.uid); !released) return Failure(released.error());
    return {200, report_.Done()};
  }
  return NoSuchPath(request);
}

// GPU/mode; the GPU by its UUID.
ApiServer::Response Api::Gpu(const ApiServer::Request& request, const std::string& rest) {
  const size_t slash = rest.find('/');
  if (slash == std::string::npos || rest.substr(slash + 1) != "mode") return NoSuchPath(request);
  const auto uuid = gpu::ParseUuid(rest.substr(0, slash));
  const auto index = uuid ? machine_.Find(*uuid) : std::nullopt;
  if (!index) return Failure({Code::kNotFound, "there is no GPU of that UUID", "see gpumux status"});
  const auto mode = ParseModeRequest(request.body);
  if (!mode) return Failure(mode.error());
  if (Status changed = leases_.ChangeMode(*index, *mode, request.peer.uid); !changed)
    return Failure(changed.error());
  return {200, report_.Done()};
}

ApiServer::Response Api::Reserve(const ApiServer::Request& request) {
  const auto pid = ParseReservePid(request.body);
  if (!pid) return Failure(pid.error());
  auto reserve = ParseReserveRequest(request.body, ReadCommandLine(*pid));
  if (!reserve) return Failure(reserve.error());
  const auto id = leases_.Reserve(std::move(*reserve), request.peer.uid);
  if (!id) return Failure(id.error());
  return {200, report_.TenantDetail(request.peer.uid, *id).value_or(report_.Done())};
}

Status Api::MayChange(const std::string& id, const ipc::PeerIdentity& peer) const {
  std::optional<uid_t> owner;
  if (const auto* tenant = tenants_.FindAny(id)) owner = tenant->uid;
  for (const auto& [request, waiter] : leases_.waiters()) {
    if (waiter.id == id) owner = waiter.uid;
  }
  if (!owner) return Fail(Code::kNotFound, "there is no tenant of that id", "see them with: gpumux ps");
  if (!IsStranger(peer.uid) || peer.uid == *owner) return {};
  return Fail(Code::kDenied, fmt::format("the tenant is {}'s", UserName(*owner)), "ask them, or root");
}

}  // namespace gpumux::daemon
