// SPDX-License-Identifier: Apache-2.0
#include "daemon/leases.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/kill_point.h"
#include "base/log.h"
#include "base/process.h"
#include "base/units.h"
#include "daemon/history_record.h"
#include "daemon/process_tree.h"
#include "daemon/report.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {
// How long `run` waits for the figures of processes that outlive its child.
constexpr Time kSummaryPatience = std::chrono::seconds(2);
// Of a user who is not the daemon's: none fills the queue alone.
constexpr ptrdiff_t kMaxWaitingOfStranger = core::Queue::kMaxWaiting / 8;
// What a `run` that hung up before its program started has to come back.
constexpr Time kStartPatience = std::chrono::seconds(2);
constexpr Time kStopPoll = std::chrono::milliseconds(20);
// One is enough to keep the lease; who is not among them is found when the last of them is gone.
constexpr size_t kMaxLeftBehind = 64;

// Is the process, of which the tenant's `run` said that it is its program, that?
bool IsItsProgram(const Tenant& tenant, const ProcessStat& stat) {
  if (stat.parent == tenant.run.pid) return true;
  // A `run` that was killed right after it said so: its program has another
  // parent already, but is younger than it and of its user.
  const auto run = ReadProcessStat(tenant.run.pid);
  const bool alive = run && run->start_time == tenant.run.start_time && run->state != 'Z';
  return !alive && stat.start_time >= tenant.run.start_time && ProcessOwner(stat.pid) == tenant.uid;
}

std::string DescribeGrant(const Tenant& tenant, const Machine& machine) {
  std::string text;
  for (size_t slot = 0; slot < tenant.gpus.size(); ++slot) {
    const core::Share& share = tenant.shares[slot];
    text += fmt::format("{} guaranteed{} on GPU {}, ",
                        share.guaranteed_bytes > 0 ? FormatBytes(share.guaranteed_bytes) : "nothing",
                        share.limit_bytes ? ", at most " + FormatBytes(*share.limit_bytes) : "",
                        machine.gpus()[tenant.gpus[slot]]->device.index.Label());
  }
  text += fmt::format("mode {}, after {:.1f} s", core::Name(tenant.mode), tenant.waited_seconds);
  if (!tenant.apart.empty()) text += "; apart from the MPS server, for " + tenant.apart;
  return text;
}

// A request has no GPU yet.
Event About(EventKind kind, const Waiter& waiter, std::string text) {
  return {.kind = kind,
          .text = std::move(text),
          .tenant = waiter.id,
          .tenant_name = waiter.request.ask.name,
          .owner = waiter.uid,
          .by = waiter.uid};
}

}  // namespace

Leases::Leases(Machine& machine, Tenants& tenants, Monitor& monitor, EventLog& events, EventLoop& loop,
               const Clock& clock, LeaseSettings settings, const core::Policy& policy)
    : machine_(machine),
      tenants_(tenants),
      monitor_(monitor),
      events_(events),
      loop_(loop),
      clock_(clock),
      settings_(std::move(settings)),
      policy_(policy),
      store_(settings_.store) {}

void Leases::Request(uint64_t session, const ipc::PeerIdentity& peer, RunRequest request) {
  const auto run = peer.pid > 0 ? NameProcess(peer.pid) : std::nullopt;
  if (!run) {
    send_refused(session, {Code::kUnsupported,
                           "the daemon cannot see the process that asks: another pid namespace", ""});
    return;
  }
  Waiter waiter;
  waiter.session = session;
  waiter.id = Tenants::NewId();
  waiter.uid = peer.uid;
  waiter.run = *run;
  waiter.since = clock_.Now();
  const uint64_t id = next_request_++;
  request.ask.id = id;
  const auto turn_away = [&](const Error& error) {
    waiter.request = std::move(request);
    events_.Note(About(EventKind::kRefused, waiter, error.ToString()));
    send_refused(session, error);
  };
  const auto of_user = std::count_if(waiters_.begin(), waiters_.end(),
                                     [&](const auto& each) { return each.second.uid == peer.uid; });
  if (IsStranger(peer.uid) && of_user >= kMaxWaitingOfStranger) {
    return turn_away({Code::kDenied, fmt::format("{} requests of yours wait already", of_user), "try later"});
  }
  if (Status named = NameOwner(peer.uid, request.ask); !named) return turn_away(named.error());
  if (!queue_.Push(request.ask)) {
    return turn_away(
        {Code::kDenied, fmt::format("{} requests wait already", core::Queue::kMaxWaiting), "try later"});
  }
  if (request.wait && request.wait_limit) {
    waiter.timeout = loop_.After(*request.wait_limit, [this, id] {
      std::string reason;
      for (const auto& waiting : queue_.waiting()) {
        if (waiting.request.id == id) reason = waiting.reason;
      }
      Refuse(id, {Code::kTimeout, "waited as long as was asked: " + reason, ""});
      ScheduleSoon();
    });
  }
  EndStaleLease(*run);
  waiter.request = std::move(request);
  waiters_.emplace(id, std::move(waiter));
  machine_.ClaimFree();
  Schedule();
}

void Leases::Refuse(uint64_t request_id, const Error& error) {
  const auto it = waiters_.find(request_id);
  queue_.Remove(request_id);
  if (it == waiters_.end()) return;
  const uint64_t session = it->second.session;
  events_.Note(About(EventKind::kRefused, it->second, error.ToString()));
  waiters_.erase(it);
  send_refused(session, error);
}

void Leases::Grant(uint64_t request_id, const core::Placement& placement) {
  const auto it = waiters_.find(request_id);
  if (it == waiters_.end()) return;
  if (::access(settings_.guard_library.c_str(), R_OK) != 0) {
    Refuse(request_id,
           {Code::kInternal, "the guard is missing: " + settings_.guard_library, "install gpumux again"});
    return;
  }
  // The loader would look for the parts of the name, complain in every program, and leave it unguarded.
  if (settings_.guard_library.find_first_of(" :") != std::string::npos) {
    Refuse(request_id, {Code::kInternal,
                        "LD_PRELOAD cannot name a file with a space or a colon: " + settings_.guard_library,
                        "install gpumux in a folder without"});
    return;
  }
  auto tenant = std::make_unique<Tenant>();
  Waiter& waiter = it->second;
  tenant->id = waiter.id;
  tenant->session = waiter.session;
  tenant->uid = waiter.uid;
  tenant->run = waiter.run;
  tenant->mode = placement.mode;
  tenant->mode_reason = placement.mode_reason;
  if (tenant->mode == core::Mode::kMps && !waiter.request.after.empty() && why_apart)
    tenant->apart = why_apart(waiter.request.after, waiter.uid);
  tenant->shares = placement.shares;
  tenant->admitted = clock_.Now();
  tenant->admitted_wall = clock_.WallTime();
  tenant->waited_seconds = std::chrono::duration<double>(clock_.Now() - waiter.since).count();
  tenant->request = std::move(waiter.request);
  for (const core::Share& share : placement.shares) tenant->gpus.push_back(*machine_.Find(share.gpu));
  tenant->peak_bytes.resize(tenant->gpus.size());
  tenant->readings_above.resize(tenant->gpus.size());
  if (Status made = MakePages(*tenant); !made) {
    Refuse(request_id, made.error());
    return;
  }
  // Before it is promised: what the next daemon does not know it cannot keep.
  if (Status saved = Save(*tenant); !saved) {
    Refuse(request_id, saved.error());
    return;
  }
  KillPoint("lease-stored");
  if (const auto refused = Promise(*tenant)) {
    // Admission and ledger disagree: a fault of ours.
    (void)store_.Remove(tenant->id);
    Refuse(request_id, {Code::kInternal,
                        fmt::format("the ledger of GPU {} refused what admission granted", *refused), ""});
    return;
  }
  waiters_.erase(it);
  Tenant& added = tenants_.Add(std::move(tenant));
  for (const size_t gpu : added.gpus) monitor_.Publish(gpu);
  WatchTimeLimit(added);
  events_.Note(About(EventKind::kGranted, added, DescribeGrant(added, machine_), added.uid));
  if (on_granted) on_granted(added);
  if (on_changed) on_changed();
  if (!added.ViaMps()) return TellGranted(added);
  prepare(added, [this, id = added.id](const Status& ready) {
    Tenant* tenant = tenants_.Find(id);
    if (!tenant || tenant->child || tenant->child_ended) return;
    if (ready)
      TellGranted(*tenant);
    else
      GiveUp(*tenant, ready.error());
  });
}

void Leases::TellGranted(Tenant& tenant) {
  // Not to another user's `run`: who has the socket can shut it down, or keep
  // the GPU's name when all is over. The keeper has it for those.
  std::vector<int> locks;
  if (!IsStranger(tenant.uid))
    for (const size_t gpu : tenant.gpus) locks.push_back(machine_.gpus()[gpu]->claim.get());
  const std::string granted =
      GrantedJson(tenant, machine_, settings_.session_socket, settings_.guard_library,
                  environment_of ? environment_of(tenant) : std::map<std::string, std::string>());
  if (!send_granted(tenant.session, granted, locks)) HungUp(tenant.session);
  KillPoint("lease-told");
}

void Leases::GiveUp(Tenant& tenant, const Error& error) {
  const uint64_t session = std::exchange(tenant.session, 0);
  tenant.run_expected = false;
  tenant.child_ended = true;
  tenant.stop_reason = error.ToString();
  CheckEnd(tenant);
  if (session != 0) send_refused(session, error);
}

void Leases::WatchTimeLimit(Tenant& tenant) {
  tenant.time_limit = {};
  if (!tenant.request.ask.time_limit) return;
  const Time left = tenant.admitted + *tenant.request.ask.time_limit - clock_.Now();
  tenant.time_limit = loop_.After(std::max<Time>(left, Time(0)), [this, id = tenant.id] {
    (void)Stop(id, StopRequest{}, std::string(kTimeWasOver));
  });
}

std::optional<std::string> Leases::Promise(Tenant& tenant) {
  for (size_t slot = 0; slot < tenant.gpus.size(); ++slot) {
    GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    const core::Share& share = tenant.shares[slot];
    if (gpu.ledger.AddTenant(tenant.id, share.guaranteed_bytes, share.limit_bytes)) {
      gpu.mode = tenant.mode;
      continue;
    }
    for (size_t undo = 0; undo < slot; ++undo) {
      GpuState& before = *machine_.gpus()[tenant.gpus[undo]];
      before.ledger.RemoveTenant(tenant.id);
      if (before.ledger.Tenants().empty()) before.mode.reset();
    }
    return gpu.device.index.Label();
  }
  return std::nullopt;
}

Tenant* Leases::OfSession(uint64_t session) {
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->session == session) return tenant.get();
  }
  return nullptr;
}

void Leases::Started(uint64_t session, pid_t pid) {
  Tenant* tenant = OfSession(session);
  if (!tenant || tenant->child) return;
  const auto stat = ReadProcessStat(pid);
  if (tenant->state == TenantState::kStarting) tenant->state = TenantState::kRunning;
  // A program that is over already: RunEnded follows.
  if (!stat) return;
  if (!IsItsProgram(*tenant, *stat)) {
    LogWarning("tenant {}: pid {} is not a child of its run (pid {})", tenant->id, pid, tenant->run.pid);
    return;
  }
  auto pidfd = OpenPidfd(pid);
  if (!pidfd) return;
  KillPoint("program-started");
  tenant->child = ProcessName{pid, stat->start_time};
  WatchChild(*tenant, std::move(*pidfd));
  if (on_changed) on_changed();
  SaveOrSay(*tenant);
  // Stopped before it started.
  if (tenant->state == TenantState::kStopping) Signal(*tenant, tenant->draining ? SIGKILL : SIGTERM);
}

void Leases::WatchChild(Tenant& tenant, UniqueFd pidfd) {
  tenant.child_pidfd = std::move(pidfd);
  tenant.child_death = loop_.OnReadable(tenant.child_pidfd.get(), [this, &tenant] {
    tenant.child_death = {};
    tenant.child_ended = true;
    CheckEnd(tenant);
  });
}

void Leases::Ended(uint64_t session, const RunEnded& ended) {
  Tenant* tenant = OfSession(session);
  // It is over with all that: the history has it, or the row of an earlier daemon was lost.
  if (!tenant) {
    (void)send_noted(session);
    return;
  }
  KillPoint("program-ended");
  tenant->child_death = {};
  tenant->child_ended = true;
  tenant->summary_due = true;
  // An earlier daemon may have noted it already.
  if (!tenant->ended)
    tenant->ended = daemon::Ended{.why = {},
                                  .exit_code = ended.exit_code,
                                  .signal = ended.signal,
                                  .at = clock_.Now(),
                                  .wall = clock_.WallTime()};
  tenant->summary_timer = loop_.After(kSummaryPatience, [this, tenant] { SendSummary(*tenant); });
  // How it ended nobody but its `run` knows, which goes when it is told so.
  if (Status saved = Save(*tenant)) {
    KillPoint("end-stored");
    (void)send_noted(session);
  } else {
    LogError("tenant {}: {}", tenant->id, saved.error().ToString());
  }
  CheckEnd(*tenant);
}

void Leases::HungUp(uint64_t session) {
  for (const auto& [id, waiter] : waiters_) {
    if (waiter.session != session) continue;
    events_.Note(About(EventKind::kCancelled, waiter, "hung up while it waited"));
    queue_.Remove(id);
    waiters_.erase(id);
    ScheduleSoon();
    return;
  }
  Tenant* tenant = OfSession(session);
  if (!tenant) return;
  tenant->session = 0;
  ExpectRun(*tenant);
  if (tenant->run_expected && !tenant->child) {
    tenant->run_patience = loop_.After(kStartPatience, [this, id = tenant->id] { GiveUpRun(id); });
  }
  CheckEnd(*tenant);
}

void Leases::GiveUpRun(const std::string& id) {
  Tenant* tenant = tenants_.Find(id);
  if (!tenant || tenant->session != 0 || tenant->child) return;
  tenant->run_expected = false;
  tenant->child_ended = true;
  CheckEnd(*tenant);
}

void Leases::CheckEnd(Tenant& tenant) {
  if (tenant.state == TenantState::kEnded || !tenant.child_ended) return;
  const auto again = [this, id = tenant.id] {
    if (Tenant* still = tenants_.Find(id)) CheckEnd(*still);
  };
  if (enquire && tenant.ended && enquire(tenant, again)) return;
  // Descriptors of the dead may be held for a while: nothing more is to be known of them.
  const bool all_dead = std::all_of(tenant.members.begin(), tenant.members.end(),
                                    [](const auto& member) { return member.second.died.has_value(); });
  if (tenant.mode == core::Mode::kMps && all_dead && !tenant.members.empty()) SendSummary(tenant);
  if (!tenant.members.empty()) return;
  // The exit code comes with RunEnded, unless `run` is gone.
  if (!tenant.ended && (tenant.session != 0 || tenant.run_expected)) return;
  // A stop ends with the last of those that it was sent to, however long they
  // take of the grace time, not with the program that started them.
  for (const auto& [process, pidfd] : tenant.stopped_processes) {
    pollfd poll{pidfd.get(), POLLIN, 0};
    if (::poll(&poll, 1, 0) == 1) continue;
    tenant.stop_poll = loop_.After(kStopPoll, [this, id = tenant.id] {
      if (Tenant* again = tenants_.Find(id)) CheckEnd(*again);
    });
    return;
  }
  if (!tenant.left_behind.empty() || WatchLeftBehind(tenant)) return;
  tenant.state = TenantState::kEnded;
  // Not from within a callback that holds the tenant.
  loop_.Post([this, id = tenant.id] {
    if (Tenant* ended = tenants_.Find(id)) End(*ended);
  });
}

bool Leases::WatchLeftBehind(Tenant& tenant) {
  for (const ProcessName& process : FindByEnvironment(tenant.id, tenant.uid)) {
    if (tenant.left_behind.size() >= kMaxLeftBehind) break;
    auto pidfd = OpenPidfd(process.pid);
    if (!pidfd || NameProcess(process.pid) != process) continue;
    LeftBehind& left = tenant.left_behind[process];
    left.pidfd = std::move(*pidfd);
    left.death = loop_.OnReadable(left.pidfd.get(), [this, &tenant, process] {
      tenant.left_behind.erase(process);
      // What it started meanwhile is looked for when the last of them is gone.
      CheckEnd(tenant);
    });
  }
  if (tenant.left_behind.empty()) return false;
  LogInfo("tenant {} ({}): its program has ended, {} process(es) that it left behind keep the lease",
          tenant.id, tenant.request.ask.name, tenant.left_behind.size());
  SendSummary(tenant);  // `run` does not wait for what may live for days
  return true;
}

std::string Leases::WhyEnded(const Tenant& tenant) {
  const daemon::Ended& ended = *tenant.ended;
  if (!tenant.stop_reason.empty()) return tenant.stop_reason;
  if (tenant.lost_work && (ended.signal || ended.exit_code.value_or(1) != 0)) return tenant.lost_work->why;
  if (ended.signal) return fmt::format("killed by signal {}", *ended.signal);
  if (ended.exit_code) return "exited";
  if (tenant.reservation) return "its process has ended";
  return tenant.child ? "ended after its run command was gone"
                      : "its run command ended before the program started";
}

void Leases::End(Tenant& tenant, std::optional<uid_t> by) {
  if (!tenant.ended)
    tenant.ended = daemon::Ended{
        .why = {}, .exit_code = {}, .signal = {}, .at = clock_.Now(), .wall = clock_.WallTime()};
  daemon::Ended& ended = *tenant.ended;
  ended.why = WhyEnded(tenant);
  if (on_ended) on_ended(tenant);
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    gpu.ledger.RemoveTenant(tenant.id);
    if (gpu.ledger.Tenants().empty()) gpu.mode.reset();
  }
  KillPoint("lease-ending");
  events_.Note(About(tenant.reservation ? EventKind::kReleased : EventKind::kEnded, tenant, ended.why, by));
  std::string past = HistoryRecord(tenant, machine_, events_);
  tenant.child_death = {};
  tenant.child_pidfd.reset();
  tenant.stop_timer = {};
  tenant.stop_poll = {};
  tenant.time_limit = {};
  tenant.stopped_processes.clear();
  tenant.pages.reset();
  tenant.run_death = {};
  tenant.run_patience = {};
  tenant.run_pidfd.reset();
  if (Status finished = store_.Finish(tenant.id, past); !finished)
    LogError("tenant {}: {}", tenant.id, finished.error().ToString());
  KillPoint("lease-finished");
  SendSummary(tenant);
  if (on_past) on_past(tenant.id, std::move(past));
  const std::vector<size_t> gpus = tenant.gpus;
  tenants_.MoveToEnded(tenant.id);
  for (const size_t gpu : gpus) monitor_.Publish(gpu);
  ScheduleSoon();
}

void Leases::SendSummary(Tenant& tenant) {
  tenant.summary_timer = {};
  if (!tenant.summary_due || tenant.session == 0) return;
  tenant.summary_due = false;
  if (tenant.ended && tenant.ended->why.empty()) tenant.ended->why = WhyEnded(tenant);
  send_summary(tenant.session, SummaryJson(tenant, machine_));
}

}  // namespace gpumux::daemon
