// SPDX-License-Identifier: Apache-2.0
//
// Who waits: the queue is judged whenever something changed, and told.
#include <algorithm>

#include "daemon/leases.h"
#include "daemon/report.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

Status Leases::NameOwner(uid_t uid, core::Request& ask) const {
  const Account account = AccountOf(uid);
  // By its number alone it would slip through the quotas of its groups.
  if (!account.known && (!policy_.users.empty() || !policy_.groups.empty())) {
    return Fail(Code::kUnavailable, "the user database does not say who user " + account.name + " is",
                "try again");
  }
  ask.user = account.name;
  ask.groups = account.groups;
  ask.priority = core::PriorityOf(policy_, ask.user, ask.groups);
  return {};
}

core::Running Leases::AsRunning(const Tenant& tenant) const {
  core::Running running{
      .name = tenant.request.ask.name,
      .user = tenant.request.ask.user,
      .groups = tenant.request.ask.groups,
      .mode = tenant.mode,
      .on = {},
      .ends_by = core::EndsBy(tenant.admitted, tenant.request.ask.time_limit, tenant.killed_at)};
  for (size_t slot = 0; slot < tenant.gpus.size(); ++slot) {
    const core::Share& share = tenant.shares[slot];
    const auto* entry = machine_.gpus()[tenant.gpus[slot]]->ledger.Find(tenant.id);
    running.on.push_back({share.gpu, share.guaranteed_bytes,
                          entry ? entry->ChargedBytes() : share.guaranteed_bytes, share.limit_bytes});
  }
  return running;
}

core::Situation Leases::SituationNow() const {
  core::Situation situation{
      .policy = policy_, .gpus = machine_.Snapshot(), .running = {}, .now = clock_.Now()};
  for (size_t i = 0; mps_of && i < situation.gpus.size(); ++i) situation.gpus[i].mps = mps_of(i);
  for (const auto& [id, tenant] : tenants_.live()) {
    situation.running.push_back(AsRunning(*tenant));
    const core::Request& ask = tenant->request.ask;
    if (tenant->mode != core::Mode::kTurns || !ask.share_min) continue;
    for (const size_t gpu : tenant->gpus) {
      situation.gpus[gpu].turns.min_ratio += *ask.share_min;
      situation.gpus[gpu].turns.names.push_back(ask.name);
    }
  }
  return situation;
}

void Leases::Schedule() {
  if (queue_.waiting().empty()) return;
  monitor_.RefreshAll();
  // Bytes beyond guarantees that nobody uses are there for a new promise.
  for (size_t i = 0; i < machine_.gpus().size(); ++i) RecallBurst(tenants_, i, *machine_.gpus()[i]);
  while (auto outcome = queue_.Next(SituationNow())) {
    if (const auto* placement = std::get_if<core::Placement>(&outcome->decision)) {
      Grant(outcome->request.id, *placement);
    } else {
      Refuse(outcome->request.id, std::get<Error>(outcome->decision));
    }
  }
  const std::set<uint64_t> awaited = make_room ? make_room(queue_.waiting()) : std::set<uint64_t>();
  std::vector<std::pair<uint64_t, std::string>> impatient;
  for (const auto& waiting : queue_.waiting()) {
    const auto it = waiters_.find(waiting.request.id);
    if (it != waiters_.end() && !it->second.request.wait && !awaited.contains(waiting.request.id))
      impatient.emplace_back(waiting.request.id, waiting.reason);
  }
  for (const auto& [id, reason] : impatient) {
    Refuse(id, {Code::kConflict, reason, "wait with --wait or ask for less"});
  }
  TellWaiters();
}

void Leases::ScheduleSoon() {
  if (schedule_posted_) return;
  schedule_posted_ = true;
  loop_.Post([this] {
    schedule_posted_ = false;
    Schedule();
  });
}

void Leases::PolicyChanged() {
  queue_.Reorder(policy_);
  ScheduleSoon();
}

void Leases::TellWaiters() {
  if (queue_.waiting().empty()) return;
  queue_.MakeEstimates(SituationNow());
  std::vector<uint64_t> gone;
  size_t position = 0;
  for (const auto& waiting : queue_.waiting()) {
    ++position;
    const auto it = waiters_.find(waiting.request.id);
    if (it == waiters_.end()) continue;
    std::string json = QueuedJson(position, waiting, tenants_, clock_);
    if (json == it->second.last_sent) continue;
    it->second.last_sent = json;
    if (!send_queued(it->second.session, json)) gone.push_back(it->second.session);
  }
  for (const uint64_t session : gone) HungUp(session);
}

}  // namespace gpumux::daemon
