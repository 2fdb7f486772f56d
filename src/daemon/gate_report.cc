// SPDX-License-Identifier: Apache-2.0
#include "daemon/gate_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace gpumux::daemon {

using Json = nlohmann::json;

namespace {

double Seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

// What holds the process's work back.
const char* HowName(uint32_t how) {
  switch (how) {
    case GPUMUX_GATE_ON_GPU:
      return "gpu";
    case GPUMUX_GATE_ON_CPU:
      return "cpu";
    default:
      return "not yet";
  }
}

}  // namespace

Json GateJson(const Tenant& tenant) {
  // Mode turns has gates of its own (turn_report.h).
  if (tenant.request.ask.urgency == core::Urgency::kNormal) return nullptr;
  const bool owner = tenant.request.ask.urgency == core::Urgency::kLatency;
  unsigned processes = 0, without_bit = 0;
  uint64_t waits = 0, forcings = 0, closed = 0, dead = 0, periods = 0, busy = 0, window = 0, windows = 0;
  std::string how;
  for (const auto& [key, member] : tenant.members) {
    if (!member.gate) continue;
    const GatePage::Figures figures = member.gate->Read();
    ++processes;
    without_bit += owner && !member.owner_bit && !member.died;
    waits += figures.waits;
    forcings += figures.forcings;
    closed += figures.closed_ns;
    dead += figures.dead_bits;
    periods += figures.busy_periods;
    busy += figures.busy_ns;
    window = std::max(window, figures.window_ns);
    windows += figures.windows;
    // The weakest of them.
    if (how.empty() || figures.how == GPUMUX_GATE_ON_CPU) how = HowName(figures.how);
  }
  if (processes == 0) return nullptr;
  Json json{{"processes", processes}};
  if (owner) {
    json["role"] = "holds others back";
    json["processes_without_bit"] = without_bit;
    json["busy_periods"] = periods;
    json["busy_seconds"] = Seconds(busy);
    json["window_seconds"] = Seconds(window);
    json["windows"] = windows;
  } else {
    json["role"] = "is held back";
    json["held_by"] = how;
    json["waits"] = waits;
    json["closed_seconds"] = Seconds(closed);
    json["forced_open"] = forcings;
    json["dead_owners"] = dead;
  }
  return json;
}

}  // namespace gpumux::daemon
