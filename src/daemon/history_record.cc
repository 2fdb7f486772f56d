// SPDX-License-Identifier: Apache-2.0
#include "daemon/history_record.h"

#include <deque>
#include <nlohmann/json.hpp>

#include "daemon/report.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::ordered_json;
using history::Outcome;

// What is of interest when a tenant is over; a busy machine has half a million of them a year.
constexpr const char* kKept[] = {"id",
                                 "name",
                                 "owner",
                                 "owner_uid",
                                 "mode",
                                 "priority",
                                 "isolation",
                                 "share_min_ratio",
                                 "share_max_ratio",
                                 "time_limit_seconds",
                                 "mem_guaranteed_bytes",
                                 "mem_limit_bytes",
                                 "mem_peak_bytes",
                                 "waited_seconds",
                                 "started_at",
                                 "ended",
                                 "refusals",
                                 "launches",
                                 "gate",
                                 "turns",
                                 "command",
                                 "cwd",
                                 "labels"};
constexpr const char* kKeptOfGpu[] = {
    "uuid", "index", "name", "mem_guaranteed_bytes", "mem_limit_bytes", "mem_peak_bytes"};

template <size_t N>
Json Picked(const Json& from, const char* const (&keys)[N]) {
  Json picked;
  for (const char* key : keys) {
    if (const auto at = from.find(key); at != from.end()) picked[key] = *at;
  }
  return picked;
}

// The last of them: changes of its promise, and what was done to it. Its beginning and its end are told
// already.
constexpr size_t kMostEvents = 32;

Json EventsOf(const Tenant& tenant, const EventLog& events) {
  std::deque<Json> of;
  // Of a daemon before this one; a row of the store may hold anything.
  const Json before = Json::parse(tenant.events_before, nullptr, false);
  if (before.is_array()) {
    for (const Json& event : before) {
      if (event.is_object() && event.contains("at") && event.contains("kind") && event.contains("text"))
        of.push_back(event);
    }
  }
  std::deque<const Event*> last;
  for (const Event& event : events.kept()) {
    if (event.tenant != tenant.id || event.kind == EventKind::kGranted || event.kind == EventKind::kEnded)
      continue;
    last.push_back(&event);
    if (last.size() > kMostEvents) last.pop_front();
  }
  for (const Event* event : last) {
    const Json full = Json::parse(EventJson(*event));
    of.push_back({{"at", full["at"]}, {"kind", full["kind"]}, {"text", full["text"]}});
  }
  while (of.size() > kMostEvents) of.pop_front();
  Json json = Json::array();
  for (Json& event : of) json.push_back(std::move(event));
  return json;
}

Outcome OfLostWork(LostWork::Cause cause) {
  switch (cause) {
    case LostWork::Cause::kNeighbour:
      return Outcome::kNeighbourFault;
    case LostWork::Cause::kOwnFault:
      return Outcome::kOwnFault;
    case LostWork::Cause::kServer:
      return Outcome::kMpsServer;
    case LostWork::Cause::kUnknown:
      break;
  }
  return Outcome::kUnknownFault;
}

int64_t Milliseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

}  // namespace

Outcome OutcomeOf(const Tenant& tenant, uint64_t refused) {
  if (tenant.reservation) return Outcome::kReleased;
  const Ended& ended = *tenant.ended;
  // A program may be over before anybody has seen its process.
  const bool seen = ended.exit_code || ended.signal;
  if (!seen && !tenant.child) return Outcome::kNotStarted;
  if (!tenant.stop_reason.empty()) {
    if (tenant.stop_reason == kTimeWasOver) return Outcome::kTimeLimit;
    return tenant.stop_reason.starts_with(kStoppedByStrict) ? Outcome::kNotEnforced : Outcome::kStopped;
  }
  if (!seen) return Outcome::kUnknown;
  if (!ended.signal && ended.exit_code == 0) return Outcome::kCompleted;
  if (tenant.lost_work) return OfLostWork(tenant.lost_work->cause);
  if (refused > 0) return Outcome::kOutOfMemory;
  return ended.signal ? Outcome::kKilled : Outcome::kFailed;
}

std::string EventsOfTenant(const Tenant& tenant, const EventLog& events) {
  return EventsOf(tenant, events).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string HistoryRecord(const Tenant& tenant, const Machine& machine, const EventLog& events) {
  const Json shown = Json::parse(SummaryJson(tenant, machine))["tenant"];
  Json record = Picked(shown, kKept);
  record["gpus"] = Json::array();
  for (const Json& gpu : shown["gpus"]) record["gpus"].push_back(Picked(gpu, kKeptOfGpu));
  record["memory_enforced"] = shown["enforced"]["memory"];
  const Refusals refusals = CountRefusals(tenant, machine);
  record["outcome"] = Name(OutcomeOf(tenant, refusals.own_limit + refusals.device_full + refusals.own_part));
  if (const auto mean = tenant.use.Mean()) {
    record["mem_mean_bytes"] = *mean;
  } else {
    record["mem_mean_bytes"] = nullptr;
    record["mem_mean_bytes_reason"] = "it was over before it was looked at twice";
  }
  record["idle_total_seconds"] = std::chrono::duration<double>(tenant.idle.Total()).count();
  record["events"] = EventsOf(tenant, events);
  record["started_ms"] = Milliseconds(tenant.admitted_wall);
  record["ended_ms"] = Milliseconds(tenant.ended->wall);
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<history::PastTenant> ParseHistoryRecord(const std::string& record) {
  const Json json = Json::parse(record, nullptr, false);
  const auto broken = [] { return Fail(Code::kInvalid, "no record of a tenant", ""); };
  if (!json.is_object()) return broken();
  try {
    history::PastTenant past{.id = json.at("id").get<std::string>(),
                             .name = json.at("name").get<std::string>(),
                             .uid = json.at("owner_uid").get<uint32_t>(),
                             .owner = json.at("owner").get<std::string>(),
                             .outcome = json.at("outcome").get<std::string>(),
                             .started_ms = json.at("started_ms").get<int64_t>(),
                             .ended_ms = json.at("ended_ms").get<int64_t>(),
                             .waited_seconds = json.at("waited_seconds").get<double>(),
                             .ran_seconds = json.at("ended").at("ran_seconds").get<double>(),
                             .labels = json.at("labels").dump(),
                             .record = record};
    (void)json.at("command").get<std::string>();
    if (past.id.empty() || !history::ParseOutcome(past.outcome)) return broken();
    return past;
  } catch (const Json::exception&) {
    return broken();
  }
}

}  // namespace gpumux::daemon
