// SPDX-License-Identifier: Apache-2.0
#include "daemon/carried.h"

#include <nlohmann/json.hpp>

#include "daemon/history_record.h"
#include "daemon/turn_roster.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::json;

constexpr LostWork::Cause kCauses[] = {LostWork::Cause::kNeighbour, LostWork::Cause::kOwnFault,
                                       LostWork::Cause::kUnknown, LostWork::Cause::kServer};
// More bytes than any machine has: figures beyond are none.
constexpr double kMostBytes = 1e18;

Json Write(const Refusals& refusals) {
  return {{"own_limit", refusals.own_limit},
          {"device_full", refusals.device_full},
          {"own_part", refusals.own_part},
          {"last_refused_bytes", refusals.last_refused_bytes}};
}

Refusals ReadRefusals(const Json& json) {
  return {.own_limit = json.at("own_limit").get<uint64_t>(),
          .device_full = json.at("device_full").get<uint64_t>(),
          .own_part = json.at("own_part").get<uint64_t>(),
          .last_refused_bytes = json.at("last_refused_bytes").get<uint64_t>()};
}

// The guard counts a refusal after it was told.
void CountTheLast(const Refusal& last, Refusals& refusals) {
  if (refusals.own_limit + refusals.device_full + refusals.own_part > 0) return;
  switch (last.cause) {
    case Refusal::Cause::kOwnLimit:
      ++refusals.own_limit;
      break;
    case Refusal::Cause::kOwnPart:
      ++refusals.own_part;
      break;
    case Refusal::Cause::kGpuFull:
    case Refusal::Cause::kDriver:
      ++refusals.device_full;
      break;
  }
  refusals.last_refused_bytes = last.bytes;
}

std::optional<LostWork> ReadLostWork(const Json& json) {
  const auto name = json.at("cause").get<std::string>();
  for (const LostWork::Cause cause : kCauses) {
    if (Name(cause) == name) return LostWork{cause, json.at("why").get<std::string>()};
  }
  return std::nullopt;
}

}  // namespace

Carried CarriedOf(const Tenant& tenant, const Machine& machine, const EventLog& events) {
  Carried carried;
  carried.refusals_of_dead = tenant.refusals_of_dead;
  carried.refusals = CountRefusals(tenant, machine);
  if (tenant.last_refusal) CountTheLast(*tenant.last_refusal, carried.refusals);
  carried.launches_of_dead = tenant.launches_of_dead;
  carried.use_byte_seconds = tenant.use.byte_seconds;
  carried.use_seconds = tenant.use.seconds;
  carried.idle = tenant.idle.Total();
  if (const TurnFigures* turns = tenant.turns.get())
    carried.turns = Carried::Turns{.billed_ns = turns->billed_ns,
                                   .waited_ns = turns->waited_ns,
                                   .turns = turns->turns,
                                   .overran = turns->overran,
                                   .unused = turns->unused};
  carried.lost_work = tenant.lost_work;
  carried.events = EventsOfTenant(tenant, events);
  return carried;
}

void Restore(const Carried& carried, Tenant& tenant) {
  tenant.refusals_of_dead = carried.refusals_of_dead;
  tenant.refusals_before = carried.refusals;
  tenant.launches_of_dead = carried.launches_of_dead;
  tenant.use.byte_seconds = carried.use_byte_seconds;
  tenant.use.seconds = carried.use_seconds;
  tenant.idle = core::IdleStretch(carried.idle);
  if (const auto& turns = carried.turns) {
    tenant.turns = std::make_shared<TurnFigures>();
    tenant.turns->billed_ns = turns->billed_ns;
    tenant.turns->waited_ns = turns->waited_ns;
    tenant.turns->turns = turns->turns;
    tenant.turns->overran = turns->overran;
    tenant.turns->unused = turns->unused;
  }
  tenant.lost_work = carried.lost_work;
  tenant.events_before = carried.events;
}

Json CarriedJson(const Carried& carried) {
  Json json = {{"refusals_of_dead", Write(carried.refusals_of_dead)},
               {"refusals", Write(carried.refusals)},
               {"launches_of_dead", carried.launches_of_dead},
               {"use_byte_seconds", carried.use_byte_seconds},
               {"use_seconds", carried.use_seconds},
               {"idle_ns", carried.idle.count()},
               {"events", carried.events}};
  if (const auto& turns = carried.turns)
    json["turns"] = {{"billed_ns", turns->billed_ns},
                     {"waited_ns", turns->waited_ns},
                     {"turns", turns->turns},
                     {"overran", turns->overran},
                     {"unused", turns->unused}};
  if (carried.lost_work)
    json["lost_work"] = {{"cause", Name(carried.lost_work->cause)}, {"why", carried.lost_work->why}};
  return json;
}

std::optional<Carried> ReadCarried(const Json& json) {
  Carried carried;
  carried.refusals_of_dead = ReadRefusals(json.at("refusals_of_dead"));
  carried.refusals = ReadRefusals(json.at("refusals"));
  carried.launches_of_dead = json.at("launches_of_dead").get<uint64_t>();
  carried.use_byte_seconds = json.at("use_byte_seconds").get<double>();
  carried.use_seconds = json.at("use_seconds").get<double>();
  carried.idle = Time(json.at("idle_ns").get<int64_t>());
  const bool use = carried.use_seconds >= 0 && carried.use_byte_seconds >= 0 &&
                   carried.use_byte_seconds <= kMostBytes * carried.use_seconds;
  if (!use || carried.idle < Time(0) || carried.idle > Time::max() / 2) return std::nullopt;
  if (const auto turns = json.find("turns"); turns != json.end()) {
    carried.turns = Carried::Turns{.billed_ns = turns->at("billed_ns").get<int64_t>(),
                                   .waited_ns = turns->at("waited_ns").get<int64_t>(),
                                   .turns = turns->at("turns").get<uint64_t>(),
                                   .overran = turns->at("overran").get<uint64_t>(),
                                   .unused = turns->at("unused").get<uint64_t>()};
    const auto impossible = [](int64_t ns) { return ns < 0 || ns > INT64_MAX / 2; };
    if (impossible(carried.turns->billed_ns) || impossible(carried.turns->waited_ns)) return std::nullopt;
  }
  if (const auto lost = json.find("lost_work"); lost != json.end()) {
    carried.lost_work = ReadLostWork(*lost);
    if (!carried.lost_work) return std::nullopt;
  }
  carried.events = json.at("events").get<std::string>();
  return carried;
}

}  // namespace gpumux::daemon
