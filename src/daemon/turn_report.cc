// SPDX-License-Identifier: Apache-2.0
#include "daemon/turn_report.h"

#include <nlohmann/json.hpp>

#include "daemon/turn_roster.h"

namespace gpumux::daemon {

namespace {

const char* StateName(core::TurnState state) {
  switch (state) {
    case core::TurnState::kIdle:
      return "idle";
    case core::TurnState::kWaiting:
      return "waits";
    case core::TurnState::kHolding:
      return "holds";
    case core::TurnState::kDraining:
      return "drains";
    case core::TurnState::kOverrunning:
      return "overruns";
  }
  return "?";
}

}  // namespace

std::string WhyNoTurns(const Tenant& tenant) {
  if (tenant.request.ask.urgency == core::Urgency::kLatency)
    return "it is latency-critical: it works when it wants to, and takes no turns";
  if (tenant.ended) return "it has ended";
  bool gate = false;
  for (const auto& [key, member] : tenant.members) gate |= member.gate && !member.died;
  if (!gate) return "no process of it has a context on a GPU";
  if (tenant.turns_serial == 0) return "nobody else takes turns on its GPUs";
  return {};
}

nlohmann::json TurnsJson(const Tenant& tenant) {
  if (!tenant.turns) return nullptr;
  const TurnFigures& figures = *tenant.turns;
  return {{"state", tenant.ended ? "idle" : StateName(figures.state.load())},
          {"gpu_seconds", static_cast<double>(figures.billed_ns.load()) / 1e9},
          {"waited_seconds", static_cast<double>(figures.waited_ns.load()) / 1e9},
          {"part_ratio", figures.part.load()},
          {"turns", figures.turns.load()},
          {"overran", figures.overran.load()},
          {"unused", figures.unused.load()}};
}

}  // namespace gpumux::daemon
