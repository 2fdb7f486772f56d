// SPDX-License-Identifier: Apache-2.0
//
// How a tenant is stopped, and when the daemon does so by itself.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "base/kill_point.h"
#include "base/log.h"
#include "base/units.h"
#include "daemon/leases.h"
#include "daemon/process_tree.h"

namespace gpumux::daemon {

namespace {

constexpr Time kTerminateLimit = std::chrono::seconds(2);
constexpr Time kDrainLimit = std::chrono::seconds(2);
constexpr uint64_t kTimesTheWork = 3;
constexpr Time kDrainLook = std::chrono::milliseconds(10);
constexpr Time kKillAgain = std::chrono::seconds(1);
constexpr unsigned kKillsBeforeRun = 5;  // a `run` on a busy machine may be late, not that late

// Which process of the tenant has used a GPU without a guard for too long; empty: none.
std::string UnguardedProcess(const Tenant& tenant, Time now) {
  for (const auto& [key, member] : tenant.members) {
    if (member.died) continue;
    for (const Member::Gpu& on : member.gpus) {
      if (on.unguarded_since && now - *on.unguarded_since >= kGuardGrace &&
          !MayHaveProcessPage(member.process.pid))
        return fmt::format("pid {} ({}) uses the GPU without the guard", member.process.pid, member.name);
    }
  }
  return {};
}

bool HasContext(const Member& member) {
  return !member.died && std::ranges::any_of(member.gpus, [](const auto& on) { return on.contexts > 0; });
}

bool HasContext(const Tenant& tenant) {
  return std::ranges::any_of(tenant.members, [](const auto& each) { return HasContext(each.second); });
}

// How long to wait for the work under way of a tenant of mode mps: some times what it is
// expected to take, at most kDrainLimit; 0: none is.
Time WorkUnderWay(const Tenant& tenant) {
  Time longest{};
  for (const auto& [key, member] : tenant.members) {
    if (!HasContext(member) || !member.page || member.page->FirstError() != 0) continue;
    const WorkWords work = member.page->Work();
    const uint64_t launches = work.launches - work.done;
    if (launches == 0) continue;
    const auto most = static_cast<uint64_t>(kDrainLimit.count());
    const bool long_or_unknown = work.launch_ns == 0 || work.launch_ns > most / kTimesTheWork / launches;
    const uint64_t expected = kTimesTheWork * launches * work.launch_ns;
    longest = std::max(longest, long_or_unknown ? kDrainLimit : Time(static_cast<int64_t>(expected)));
  }
  return longest;
}

}  // namespace

Status Leases::Stop(const std::string& id, const StopRequest& request, const std::string& reason,
                    std::optional<uid_t> by) {
  for (const auto& [request_id, waiter] : waiters_) {
    if (waiter.id != id) continue;
    Refuse(request_id, {Code::kDenied, reason + " while it waited", ""});
    ScheduleSoon();
    return {};
  }
  Tenant* tenant = tenants_.Find(id);
  if (!tenant) return Fail(Code::kNotFound, "there is no tenant " + id, "see them with: gpumux ps");
  if (tenant->reservation)
    return Fail(
        Code::kDenied, "it is a reservation for a program outside gpumux, which gpumux does not stop",
        "give the room up with: gpumux reserve --release --pid " + std::to_string(tenant->child->pid));
  if (tenant->stop_reason.empty()) tenant->stop_reason = reason;
  tenant->stop_signal = request.signal;
  tenant->state = TenantState::kStopping;
  // Those who wait were told by when: another stop may shorten the time, not lengthen it.
  const Time killed_at = clock_.Now() + request.grace;
  tenant->killed_at = std::min(tenant->killed_at.value_or(killed_at), killed_at);
  const Time grace = std::max(*tenant->killed_at - clock_.Now(), Time(0));
  events_.Note(About(
      EventKind::kStopping, *tenant,
      fmt::format("{}: signal {}, SIGKILL after {}", reason, request.signal, FormatDuration(grace)), by));
  SaveOrSay(*tenant);
  KillPoint("stop-stored");
  Signal(*tenant, request.signal);
  tenant->stop_timer = loop_.After(grace, [this, id] { Kill(id); });
  ScheduleSoon();
  return {};
}

void Leases::Signal(Tenant& tenant, int signal) {
  std::vector<ProcessName> roots;
  if (tenant.child) roots.push_back(*tenant.child);
  for (const auto& [key, member] : tenant.members) {
    if (!member.died) roots.push_back(member.process);
  }
  for (const ProcessName& process : FindByEnvironment(tenant.id, tenant.uid)) roots.push_back(process);
  // A `run` that neither starts its program nor reports its end, long after
  // SIGKILL to all else, is all that keeps the lease.
  if (tenant.kills > kKillsBeforeRun && (tenant.session != 0 || tenant.run_expected) &&
      (!tenant.child || tenant.child_ended))
    roots.push_back(tenant.run);
  auto tree = OpenTree(roots);
  for (const auto& [process, pidfd] : tree) SendSignal(pidfd, signal);
  // Whoever loses its parent meanwhile is still found at the next signal.
  for (auto& [process, pidfd] : tenant.stopped_processes) {
    const bool again =
        std::any_of(tree.begin(), tree.end(), [&p = process](const auto& each) { return each.first == p; });
    if (again) continue;
    SendSignal(pidfd, signal);
    tree.emplace_back(process, std::move(pidfd));
  }
  tenant.stopped_processes = std::move(tree);
}

void Leases::Kill(const std::string& id) {
  Tenant* tenant = tenants_.Find(id);
  if (!tenant) return;
  tenant->draining = true;
  ++tenant->kills;
  // Its pages say so: guards of clients of MPS let nothing more start.
  for (const size_t gpu : tenant->gpus) monitor_.Publish(gpu);
  if (on_changed) on_changed();
  if (tenant->kills > 1 || !tenant->ViaMps()) return KillNow(id);
  Drain(id, clock_.Now() + WorkUnderWay(*tenant));
}

void Leases::Drain(const std::string& id, Time until) {
  Tenant* tenant = tenants_.Find(id);
  if (!tenant) return;
  if (clock_.Now() >= until || WorkUnderWay(*tenant) == Time{}) return Terminate(id);
  tenant->stop_timer = loop_.After(kDrainLook, [this, id, until] { Drain(id, until); });
}

// A client of MPS that is killed at work may take its neighbours along; one whose work
// the server has ended does not.
void Leases::Terminate(const std::string& id) {
  Tenant& tenant = *tenants_.Find(id);
  const bool asked = terminate_clients && terminate_clients(tenant, [this, id] { KillNow(id); });
  if (!asked) return KillNow(id);
  tenant.stop_timer = loop_.After(kTerminateLimit, [this, id] { KillNow(id); });
}

void Leases::KillNow(const std::string& id) {
  Tenant* tenant = tenants_.Find(id);
  if (!tenant) return;
  Signal(*tenant, SIGKILL);
  tenant->stop_timer = loop_.After(kKillAgain, [this, id] { Kill(id); });
}

void Leases::WatchGuards() {
  std::vector<std::pair<std::string, std::string>> to_stop;
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->reservation) continue;  // it never was, and said so
    const std::string unguarded = UnguardedProcess(*tenant, clock_.Now());
    const std::string unserved = why_not_served ? why_not_served(*tenant) : "";
    // Without a context it has been refused one, for that very reason.
    const std::string wrong = !unguarded.empty() ? unguarded : HasContext(*tenant) ? unserved : "";
    if (!wrong.empty() && tenant->request.strict && tenant->state != TenantState::kStopping)
      to_stop.emplace_back(id, wrong);
    std::string reason = unguarded;
    if (reason.empty() && !tenant->unpromised.empty()) reason = tenant->unpromised.begin()->second;
    if (reason.empty()) reason = unserved;
    if (tenant->not_enforced.empty() != reason.empty()) {
      events_.Note(About(reason.empty() ? EventKind::kEnforced : EventKind::kNotEnforced, *tenant,
                         reason.empty() ? "its memory limit is in force again" : reason));
    }
    if (!reason.empty()) tenant->was_not_enforced = reason;
    tenant->not_enforced = std::move(reason);
  }
  for (const auto& [id, reason] : to_stop)
    (void)Stop(id, StopRequest{}, std::string(kStoppedByStrict) + ": " + reason);
}

}  // namespace gpumux::daemon
