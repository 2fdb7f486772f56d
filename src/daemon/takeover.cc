// SPDX-License-Identifier: Apache-2.0
//
// The leases of a daemon that is gone (docs/design/takeover.md).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/kill_point.h"
#include "base/log.h"
#include "base/process.h"
#include "daemon/lease_record.h"
#include "daemon/leases.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

bool Lives(const ProcessName& process) {
  const auto stat = ReadProcessStat(process.pid);
  return stat && stat->start_time == process.start_time && stat->state != 'Z';
}

// The process itself, or nothing if the pid is another's by now.
std::optional<UniqueFd> OpenProcess(const ProcessName& process) {
  auto pidfd = OpenPidfd(process.pid);
  if (!pidfd || !Lives(process)) return std::nullopt;
  return std::move(*pidfd);
}

}  // namespace

Status Leases::Save(const Tenant& tenant) {
  return store_.Put(tenant.id, FormatLeaseRecord({.id = tenant.id,
                                                  .uid = tenant.uid,
                                                  .run = tenant.run,
                                                  .child = tenant.child,
                                                  .mode = tenant.mode,
                                                  .mode_reason = tenant.mode_reason,
                                                  .apart = tenant.apart,
                                                  .shares = tenant.shares,
                                                  .peak_bytes = tenant.peak_bytes,
                                                  .request = tenant.request.text,
                                                  .admitted = tenant.admitted,
                                                  .admitted_wall = tenant.admitted_wall,
                                                  .waited_seconds = tenant.waited_seconds,
                                                  .guard_seen = tenant.guard_seen,
                                                  .frees_as_it_goes = tenant.frees_as_it_goes,
                                                  .reservation = tenant.reservation,
                                                  .stop_reason = tenant.stop_reason,
                                                  .stop_signal = tenant.stop_signal,
                                                  .killed_at = tenant.killed_at,
                                                  .carried = CarriedOf(tenant, machine_, events_),
                                                  .ended = tenant.ended}));
}

void Leases::SaveAll() {
  for (const auto& [id, tenant] : tenants_.live()) SaveOrSay(*tenant);
}

void Leases::SaveOrSay(const Tenant& tenant) {
  if (Status saved = Save(tenant); !saved) LogError("tenant {}: {}", tenant.id, saved.error().ToString());
}

void Leases::NoteRefused(Tenant& tenant) {
  if (!tenant.last_refusal || std::exchange(tenant.refusal_stored, true)) return;
  SaveOrSay(tenant);
}

void Leases::KeepStore() {
  if (store_.InPlace()) return;
  store_.Reopen();
  if (!store_.InPlace()) return;
  if (!taken_over_) TakeOver();
  size_t saved = 0;
  for (const auto& [id, tenant] : tenants_.live()) saved += Save(*tenant).has_value();
  for (const auto& [id, record] : waiting_rows_) saved += store_.Put(id, record).has_value();
  LogWarning("{} was opened anew, with {} lease(s)", settings_.store, saved);
}

Status Leases::MakePages(Tenant& tenant) {
  std::vector<TenantPages::Gpu> gpus;
  for (size_t slot = 0; slot < tenant.gpus.size(); ++slot) {
    const GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    gpus.push_back({tenant.shares[slot].gpu, gpu.ledger.TotalBytes(), gpu.cost.ChargeBytes()});
  }
  auto pages = TenantPages::Create(tenant.id, gpus, tenant.request.strict, machine_.source().simulated);
  if (!pages) {
    return Fail(Code::kUnavailable, "gpumuxd has no room for pages: " + pages.error().message,
                "try again; see the limits of its process and the machine's memory");
  }
  tenant.pages = std::move(*pages);
  if (tenant.ViaMps()) tenant.pages->SetMps();
  return {};
}

void Leases::TakeOver() {
  const auto rows = store_.All();
  if (!rows) return;
  taken_over_ = true;
  for (const auto& [id, record] : *rows) TakeOver(id, record);
  if (!tenants_.live().empty()) LogInfo("took over {} lease(s)", tenants_.live().size());
  if (!waiting_rows_.empty())
    LogWarning("{} lease(s) wait for GPUs that NVML does not show", waiting_rows_.size());
  TellPast();
}

void Leases::TellPast() {
  const auto finished = store_.Finished();
  if (!finished || !on_past) return;
  for (const auto& [id, past] : *finished) on_past(id, past);
}

void Leases::Kept(const std::string& id) {
  if (Status forgotten = store_.Forget(id); !forgotten)
    LogError("tenant {}: {}", id, forgotten.error().ToString());
}

void Leases::TakeOverLate() {
  for (const auto& [id, record] : std::exchange(waiting_rows_, {})) TakeOver(id, record);
}

void Leases::TakeOver(const std::string& id, const std::string& text) {
  auto record = ParseLeaseRecord(text);
  auto request =
      record ? ParseRunRequest(record->request) : Result<RunRequest>(tl::unexpected(record.error()));
  const auto give_up = [&](const std::string& why) {
    events_.Note({.kind = EventKind::kNotTakenOver,
                  .text = fmt::format("the lease {} of an earlier daemon is not taken over: {}", id, why)});
    (void)store_.Remove(id);
  };
  if (!request) return give_up(request.error().ToString());
  if (record->id != id) return give_up("its row is another's");
  auto tenant = std::make_unique<Tenant>();
  for (const core::Share& share : record->shares) {
    const auto index = machine_.Find(share.gpu);
    if (!index || !machine_.gpus()[*index]->Known()) {
      if (!Lives(record->run) && !(record->child && Lives(*record->child)))
        return give_up("GPU " + share.gpu.ToString() + " is gone, and so is its program");
      waiting_rows_.emplace_back(id, text);
      return;
    }
    tenant->gpus.push_back(*index);
  }
  tenant->id = id;
  tenant->uid = record->uid;
  tenant->run = record->run;
  tenant->child = record->child;
  tenant->mode = record->mode;
  tenant->mode_reason = record->mode_reason;
  tenant->apart = record->apart;
  tenant->shares = record->shares;
  tenant->peak_bytes = record->peak_bytes;
  tenant->readings_above.resize(tenant->gpus.size());
  tenant->request = std::move(*request);
  // Its lease is given, whoever the database says it is.
  (void)NameOwner(tenant->uid, tenant->request.ask);
  tenant->admitted = record->admitted;
  tenant->admitted_wall = record->admitted_wall;
  tenant->waited_seconds = record->waited_seconds;
  tenant->guard_seen = record->guard_seen;
  tenant->frees_as_it_goes = record->frees_as_it_goes;
  tenant->reservation = record->reservation;
  if (tenant->reservation) tenant->not_enforced = tenant->was_not_enforced = kOutsideGpumux;
  tenant->stop_reason = record->stop_reason;
  tenant->stop_signal = record->stop_signal;
  Restore(record->carried, *tenant);
  tenant->state = tenant->child ? TenantState::kRunning : TenantState::kStarting;
  if (Status made = MakePages(*tenant); !made) {
    waiting_rows_.emplace_back(id, text);
    return cannot_take_over({made.error().code,
                             fmt::format("the lease {} cannot be taken over: {}", id, made.error().message),
                             made.error().hint});
  }
  if (const auto refused = Promise(*tenant))
    return give_up(fmt::format("its bytes are not there on GPU {}", *refused));
  Tenant& added = tenants_.Add(std::move(tenant));
  KillPoint("lease-taken");
  ExpectRun(added);
  auto child = added.child ? OpenProcess(*added.child) : std::nullopt;
  if (child) {
    WatchChild(added, std::move(*child));
  } else if (added.child) {
    added.child_ended = true;
  }
  if (record->ended) {
    added.ended = record->ended;
    added.child_ended = true;
    added.child_death = {};
  }
  WatchTimeLimit(added);
  if (!added.stop_reason.empty()) {
    added.state = TenantState::kStopping;
    Signal(added, added.stop_signal);
    const Time now = clock_.Now();
    added.killed_at = std::max(record->killed_at.value_or(now + core::kUsualGrace), now);
    added.stop_timer = loop_.After(*added.killed_at - now, [this, id] { Kill(id); });
  }
  events_.Note(About(EventKind::kTakenOver, added,
                     child ? "from an earlier daemon; its program runs"
                           : "from an earlier daemon; its program has not started, or is gone"));
  // Once NVML was asked who of it is on a GPU.
  loop_.Post([this, id] {
    if (Tenant* taken = tenants_.Find(id)) CheckEnd(*taken);
  });
}

void Leases::ExpectRun(Tenant& tenant) {
  tenant.run_death = {};
  auto run = OpenProcess(tenant.run);
  tenant.run_expected = run.has_value();
  if (!run) {
    if (!tenant.child) tenant.child_ended = true;
    return;
  }
  tenant.run_pidfd = std::move(*run);
  tenant.run_death = loop_.OnReadable(tenant.run_pidfd.get(), [this, &tenant] {
    tenant.run_death = {};
    tenant.run_expected = false;
    if (!tenant.child) tenant.child_ended = true;
    CheckEnd(tenant);
  });
}

void Leases::EndStaleLease(const ProcessName& run) {
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->run != run || !tenant->run_expected || tenant->child) continue;
    tenant->run_expected = false;
    tenant->child_ended = true;
    CheckEnd(*tenant);
    return;
  }
}

void Leases::Resume(uint64_t session, const ipc::PeerIdentity& peer, const RunResume& resume,
                    std::vector<UniqueFd> locks) {
  Tenant* tenant = tenants_.Find(resume.tenant);
  const auto run = peer.pid > 0 ? NameProcess(peer.pid) : std::nullopt;
  // It may come back before its old session was seen to be gone.
  const bool expected = tenant && (tenant->run_expected || tenant->session != 0);
  if (!run || !expected || tenant->run != *run) {
    return send_refused(session, {Code::kNotFound, "no lease " + resume.tenant + " of this command", ""});
  }
  KillPoint("run-resuming");
  for (UniqueFd& lock : locks) machine_.TakeClaim(std::move(lock));
  tenant->session = session;
  tenant->run_expected = false;
  tenant->run_death = {};
  tenant->run_pidfd.reset();
  if (!send_resumed(session)) return HungUp(session);
  if (resume.pid && !tenant->child) Started(session, *resume.pid);
  LogInfo("tenant {}: its run is back", tenant->id);
  ScheduleSoon();
}

}  // namespace gpumux::daemon
