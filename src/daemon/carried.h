// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "daemon/events.h"
#include "daemon/machine.h"
#include "daemon/tenant.h"

namespace gpumux::daemon {

// What the history is to tell of a tenant, and this daemon's memory alone knows:
// with the lease's row it comes to the next daemon.
struct Carried {
  struct Turns {
    int64_t billed_ns = 0, waited_ns = 0;
    uint64_t turns = 0, overran = 0, unused = 0;
  };
  // Of the dead, and of all: a process that lives brings its own with its page.
  Refusals refusals_of_dead, refusals;
  uint64_t launches_of_dead = 0;
  double use_byte_seconds = 0, use_seconds = 0;
  Time idle{};
  std::optional<Turns> turns;
  std::optional<LostWork> lost_work;
  std::string events = "[]";  // JSON: EventsOfTenant
};

Carried CarriedOf(const Tenant& tenant, const Machine& machine, const EventLog& events);
void Restore(const Carried& carried, Tenant& tenant);

nlohmann::json CarriedJson(const Carried& carried);
// Throws what nlohmann::json throws. Nullopt: no such figures can be.
std::optional<Carried> ReadCarried(const nlohmann::json& json);

}  // namespace gpumux::daemon
