// SPDX-License-Identifier: Apache-2.0
#include "daemon/turn_desk.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/process.h"
#include "base/units.h"

namespace gpumux::daemon {

namespace {

// By SIGSTOP or a debugger: all of its processes that may have work on a GPU.
bool IsStopped(const Tenant& tenant) {
  bool any = false;
  for (const auto& [key, member] : tenant.members) {
    if (!member.gate || member.died) continue;
    const auto stat = ReadProcessStat(member.process.pid);
    if (!stat || stat->start_time != member.process.start_time || (stat->state != 'T' && stat->state != 't'))
      return false;
    any = true;
  }
  return any;
}

}  // namespace

bool InTurns(const Tenant& tenant) {
  return tenant.mode == core::Mode::kTurns && tenant.request.ask.urgency != core::Urgency::kLatency &&
         tenant.state != TenantState::kEnded;
}

bool TakesTurns(const Tenant& tenant, const Tenants& tenants) {
  if (!InTurns(tenant)) return false;
  if (tenant.request.ask.share_ceiling.value_or(1) < 1) return true;
  return std::ranges::any_of(tenants.live(), [&](const auto& entry) {
    const Tenant& other = *entry.second;
    return &other != &tenant && InTurns(other) && std::ranges::any_of(other.gpus, [&](size_t gpu) {
      return std::ranges::find(tenant.gpus, gpu) != tenant.gpus.end();
    });
  });
}

TurnRoster TurnDesk::Roster() {
  TurnRoster roster;
  bool too_many = false;
  for (const auto& [id, tenant] : tenants_.live()) {
    if (!TakesTurns(*tenant, tenants_)) continue;
    TurnTenant entry;
    for (const auto& [key, member] : tenant->members) {
      if (member.gate && !member.died) entry.pages.push_back(member.gate);
    }
    if (entry.pages.empty()) continue;
    too_many |= roster.tenants.size() == TurnRoster::kMost;
    if (too_many) continue;
    if (!tenant->turns) tenant->turns = std::make_shared<TurnFigures>();
    if (tenant->turns_serial == 0) tenant->turns_serial = ++serials_;
    entry.serial = tenant->turns_serial;
    entry.figures = tenant->turns;
    entry.share.min_ratio = tenant->request.ask.share_min.value_or(0);
    entry.share.max_ratio = tenant->request.ask.share_ceiling.value_or(1);
    for (const size_t gpu : tenant->gpus) {
      if (gpu < entry.gpus.size()) entry.gpus.set(gpu);
    }
    roster.tenants.push_back(std::move(entry));
  }
  if (too_many && !too_many_)
    LogWarning("more than {} tenants take turns: those that came last are not held back", TurnRoster::kMost);
  too_many_ = too_many;
  return roster;
}

void TurnDesk::Update() {
  TurnRoster roster = Roster();
  if (roster.tenants == told_) return;
  if (!thread_) thread_ = std::make_unique<TurnThread>(times_, waits_);
  told_ = roster.tenants;
  thread_->Take(std::make_unique<TurnRoster>(std::move(roster)));
}

void TurnDesk::Tick() {
  for (const auto& [id, tenant] : tenants_.live()) {
    if (!tenant->turns) continue;
    Tell(*tenant);
    tenant->turns->stopped = IsStopped(*tenant);
  }
}

// The first of each kind: more of the same are in the tenant's figures.
void TurnDesk::Tell(Tenant& tenant) {
  const auto tell = [&](bool& told, uint64_t count, const std::string& why) {
    if (told || count == 0) return;
    told = true;
    events_.Note(About(EventKind::kTurnTaken, tenant, fmt::format("its turn was taken: {}", why)));
  };
  tell(tenant.turn_overran_told, tenant.turns->overran,
       fmt::format("what it had on the GPU did not end within {}; others go on beside it",
                   FormatDuration(times_.grace)));
  tell(tenant.turn_unused_told, tenant.turns->unused,
       fmt::format("nothing of it ran for {} of it", FormatDuration(times_.unused_after)));
}

}  // namespace gpumux::daemon
