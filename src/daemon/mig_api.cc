// SPDX-License-Identifier: Apache-2.0
#include "daemon/mig_api.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "daemon/report.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostInstances = 64;
constexpr double kMaxWaitSeconds = 3600.0 * 24 * 365;

ApiServer::Response Failure(const Error& error) { return {HttpStatus(error.code), Report::ErrorBody(error)}; }

tl::unexpected<Error> Bad(const char* member, const char* must) {
  return Fail(Code::kInvalid, fmt::format("{} {}", member, must));
}

Result<Json> Parse(std::string_view body) {
  Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) return Fail(Code::kInvalid, "the request is not a JSON object");
  return json;
}

Result<bool> Flag(const Json& json, const char* name) {
  const auto it = json.find(name);
  if (it == json.end()) return false;
  if (!it->is_boolean()) return Bad(name, "must be true or false");
  return it->get<bool>();
}

Result<std::string> GpuOf(const Json& json) {
  const auto it = json.find("gpu");
  if (it == json.end() || it->is_null()) return std::string();
  if (!it->is_string() || it->get_ref<const std::string&>().size() > 64)
    return Bad("gpu", "must be a GPU's name");
  return it->get<std::string>();
}

Result<core::mig::Layout> LayoutOf(const Json& json) {
  const auto it = json.find("instances");
  if (it == json.end() || !it->is_array() || it->size() > kMostInstances)
    return Bad("instances", "must be a list of at most 64 instances");
  core::mig::Layout layout;
  for (const Json& each : *it) {
    const auto number = [&](const char* name) -> std::optional<uint32_t> {
      const auto found = each.find(name);
      if (found == each.end() || !found->is_number_unsigned() || found->get<uint64_t>() > 1000)
        return std::nullopt;
      return found->get<uint32_t>();
    };
    const auto profile = each.is_object() ? number("profile") : std::nullopt;
    const auto start = each.is_object() ? number("start") : std::nullopt;
    if (!profile || !start) return Bad("instances", "must have a profile's id and a start each");
    layout.push_back({*start, *profile});
  }
  return layout;
}

Json OutcomeJson(const MigOutcome& outcome, bool dry_run) {
  return {{"gpu", outcome.gpu},
          {"dry_run", dry_run},
          {"changed", outcome.changed},
          {"steps", outcome.steps},
          {"users", outcome.stopped},
          {"took_seconds", std::chrono::duration<double>(outcome.took).count()},
          {"lost_gpu_seconds", outcome.lost_gpu_seconds}};
}

}  // namespace

Result<MigChangeRequest> ParseMigChangeRequest(std::string_view body) {
  const auto json = Parse(body);
  if (!json) return tl::unexpected(json.error());
  MigChangeRequest request;
  auto gpu = GpuOf(*json);
  if (!gpu) return tl::unexpected(gpu.error());
  request.gpu = std::move(*gpu);
  auto layout = LayoutOf(*json);
  if (!layout) return tl::unexpected(layout.error());
  request.wanted = std::move(*layout);
  for (const auto& [name, flag] :
       {std::pair{"dry_run", &request.dry_run}, std::pair{"keep", &request.keep}}) {
    const auto value = Flag(*json, name);
    if (!value) return tl::unexpected(value.error());
    *flag = *value;
  }
  if (const auto drain = json->find("drain"); drain != json->end()) {
    if (*drain == "wait")
      request.drain = MigDrain::kWait;
    else if (*drain == "stop")
      request.drain = MigDrain::kStop;
    else if (*drain != "refuse")
      return Bad("drain", "must be refuse, wait or stop");
  }
  if (const auto wait = json->find("wait_seconds"); wait != json->end() && !wait->is_null()) {
    if (!wait->is_number() || !(wait->get<double>() >= 0 && wait->get<double>() <= kMaxWaitSeconds))
      return Bad("wait_seconds", "must be a number of seconds of at most a year");
    request.wait = std::chrono::duration_cast<Time>(std::chrono::duration<double>(wait->get<double>()));
  }
  return request;
}

std::string MigApi::Envelope(const std::string& data) const {
  return EnvelopeOf("gpumux.mig-change/1", clock_, machine_.source().simulated, data);
}

void MigApi::Handle(const ApiServer::Request& request, ApiServer::Reply reply) {
  if (request.method == "GET" && request.path == "/v1/mig") {
    Json kept = Json::array();
    for (const auto& gpu : machine_.gpus()) {
      if (!gpu->device.instance && mig_.IsKept(gpu->device.uuid)) kept.push_back(gpu->device.index.Label());
    }
    const std::string under_way = mig_.UnderWay();
    return reply({200, Envelope(Json{{"under_way", under_way.empty() ? Json(nullptr) : Json(under_way)},
                                     {"kept", std::move(kept)}}
                                    .dump())});
  }
  const bool apply = request.path == "/v1/mig/apply", mode = request.path == "/v1/mig/mode";
  const bool forget = request.path == "/v1/mig/forget", cancel = request.path == "/v1/mig/cancel";
  if (request.method != "POST" || (!apply && !mode && !forget && !cancel))
    return reply(
        Failure({Code::kNotFound, fmt::format("there is no {} {} here", request.method, request.path), ""}));
  if (IsStranger(request.peer.uid))
    return reply(Failure(
        {Code::kDenied, "partitions are " + UserName(::geteuid()) + "'s to change", "ask them, or root"}));
  if (apply) return Apply(request, std::move(reply));
  if (cancel) {
    const Status cancelled = mig_.Cancel(request.peer.uid);
    if (!cancelled) return reply(Failure(cancelled.error()));
    return reply({200, Envelope(Json{{"text", "the change is cancelled; nothing was changed"}}.dump())});
  }
  const auto json = Parse(request.body);
  if (!json) return reply(Failure(json.error()));
  const auto gpu = GpuOf(*json);
  if (!gpu) return reply(Failure(gpu.error()));
  if (forget) {
    const Status forgotten = mig_.Forget(*gpu);
    if (!forgotten) return reply(Failure(forgotten.error()));
    return reply({200, Envelope(Json{{"text", "its layout is not kept any more"}}.dump())});
  }
  // Not by default either way.
  if (!json->contains("on")) return reply(Failure({Code::kInvalid, "on must be true or false", ""}));
  const auto on = Flag(*json, "on");
  if (!on) return reply(Failure(on.error()));
  const auto set = mig_.SetMode(*gpu, *on, request.peer.uid);
  if (!set) return reply(Failure(set.error()));
  reply({200, Envelope(Json{{"text", *set}}.dump())});
}

void MigApi::Apply(const ApiServer::Request& request, ApiServer::Reply reply) {
  auto change = ParseMigChangeRequest(request.body);
  if (!change) return reply(Failure(change.error()));
  change->by = request.peer.uid;
  mig_.Apply(*change,
             [this, dry_run = change->dry_run, reply = std::move(reply)](const Result<MigOutcome>& outcome) {
               if (!outcome) return reply(Failure(outcome.error()));
               reply({200, Envelope(OutcomeJson(*outcome, dry_run).dump())});
             });
}

}  // namespace gpumux::daemon
