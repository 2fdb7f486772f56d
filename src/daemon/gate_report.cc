// SPDX-License-Identifier: Apache-2.0
#include "daemon/gate_report.h"

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

std::optional<GatePage::Figures> SumGates(const Tenant& tenant) {
  // Mode turns has gates of its own (turn_report.h).
  if (tenant.request.ask.urgency == core::Urgency::kNormal) return std::nullopt;
  GatePage::Figures live;
  for (const auto& [key, member] : tenant.members)
    if (member.gate) live.Add(member.gate->Read());
  GatePage::Figures all = tenant.gates_of_dead;
  all.Add(live);
  if (all.processes == 0) return std::nullopt;
  return all;
}

Json GateJson(const Tenant& tenant) {
  const auto sum = SumGates(tenant);
  if (!sum) return nullptr;
  const GatePage::Figures& all = *sum;
  unsigned processes = 0, without_bit = 0;
  for (const auto& [key, member] : tenant.members) {
    processes += member.gate != nullptr;
    without_bit += member.gate && !member.owner_bit && !member.died;
  }
  Json json{{"processes", processes}};
  if (tenant.request.ask.urgency == core::Urgency::kLatency) {
    json["role"] = "holds others back";
    json["processes_without_bit"] = without_bit;
    json["busy_periods"] = all.busy_periods;
    json["busy_seconds"] = Seconds(all.busy_ns);
    json["window_seconds"] = Seconds(all.window_ns);
    json["windows"] = all.windows;
  } else {
    json["role"] = "is held back";
    json["held_by"] = HowName(all.how);
    json["waits"] = all.waits;
    json["closed_seconds"] = Seconds(all.closed_ns);
    json["forced_open"] = all.forcings;
    json["dead_owners"] = all.dead_bits;
  }
  return json;
}

}  // namespace gpumux::daemon
