// SPDX-License-Identifier: Apache-2.0
#include "daemon/idle.h"

#include <fmt/format.h>

#include "base/units.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {

bool UsesAGpu(const Member& member) {
  return !member.died && std::any_of(member.gpus.begin(), member.gpus.end(),
                                     [](const Member::Gpu& on) { return on.IsUsed(); });
}

// "": it holds memory, and every process that does has its launches counted.
std::string WhyNotKnown(const Tenant& tenant) {
  if (tenant.reservation) return "a reservation: nobody counts its launches";
  bool holds = false;
  for (const auto& [key, member] : tenant.members) {
    if (!UsesAGpu(member)) continue;
    holds = true;
    if (!member.page || !member.page->InForce())
      return fmt::format("nobody counts the launches of pid {}: it has no guard in force",
                         member.process.pid);
  }
  return holds ? "" : "it holds no memory of a GPU";
}

uint64_t UsedBytes(const Tenant& tenant, const Machine& machine) {
  uint64_t used = 0;
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot)
    used += Measure(tenant, slot, *machine.gpus()[tenant.gpus[slot]]).used_bytes;
  return used;
}

}  // namespace

void IdleWatch::Look(Tenant& tenant) {
  tenant.idle_unknown = WhyNotKnown(tenant);
  if (tenant.idle_unknown.empty())
    tenant.idle.Look(clock_.Now(), CountLaunches(tenant));
  else
    tenant.idle.End();
}

void IdleWatch::Act(Tenant& tenant) {
  if (tenant.idle.TakeOver())
    events_.Note(About(EventKind::kIdleOver, tenant,
                       tenant.idle_unknown.empty() ? "launches kernels again" : tenant.idle_unknown));
  if (!tenant.idle.BecomesDue(policy_.idle)) return;
  std::string text =
      fmt::format("holds {} and has launched no kernel for {}", FormatBytes(UsedBytes(tenant, machine_)),
                  FormatDuration(*tenant.idle.Lasted()));
  if (policy_.idle.action == core::IdleAction::kReclaim) {
    const unsigned asked = reclaim_.AskForAll(tenant);
    text += asked > 0
                ? fmt::format("; {} process(es) of it were asked to give back what they only cache", asked)
                : "; no process of it can be asked to give back what it only caches";
  }
  events_.Note(About(EventKind::kIdle, tenant, std::move(text)));
}

void IdleWatch::Tick() {
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->state == TenantState::kEnded) continue;
    Look(*tenant);
    Act(*tenant);
  }
}

}  // namespace gpumux::daemon
