// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "daemon/events.h"
#include "daemon/machine.h"
#include "daemon/tenant.h"
#include "history/outcome.h"
#include "history/store.h"

namespace gpumux::daemon {

// Of one with `ended`. `refused`: how often it was refused memory.
history::Outcome OutcomeOf(const Tenant& tenant, uint64_t refused);

// What happened to it between its beginning and its end, as far as it is kept: a JSON array.
std::string EventsOfTenant(const Tenant& tenant, const EventLog& events);
// For the history: the tenant as the API shows it, with `outcome`, `mem_mean_bytes` and what happened to it.
// JSON.
std::string HistoryRecord(const Tenant& tenant, const Machine& machine, const EventLog& events);
// kInvalid: it is none. Any bytes may come.
Result<history::PastTenant> ParseHistoryRecord(const std::string& record);

}  // namespace gpumux::daemon
