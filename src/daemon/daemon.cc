// SPDX-License-Identifier: Apache-2.0
#include "daemon/daemon.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/log.h"
#include "base/log_file.h"
#include "base/units.h"
#include "daemon/api.h"
#include "daemon/ending.h"
#include "daemon/events.h"
#include "daemon/gates.h"
#include "daemon/gpu_samples.h"
#include "daemon/history.h"
#include "daemon/idle.h"
#include "daemon/kept.h"
#include "daemon/metrics.h"
#include "daemon/mig_api.h"
#include "daemon/mps_clients.h"
#include "daemon/mps_faults.h"
#include "daemon/mps_places.h"
#include "daemon/place.h"
#include "daemon/process_tree.h"
#include "daemon/refusals.h"
#include "daemon/sessions.h"
#include "daemon/turn_desk.h"
#include "daemon/xids.h"

namespace gpumux::daemon {

namespace {
constexpr Time kTick = std::chrono::seconds(1);
constexpr Time kSampleEach = std::chrono::minutes(1);
constexpr Time kLeaveLimit = std::chrono::seconds(5);

// A change under way goes with the boot, as instances do; what is kept outlives it, beside the history.
MigService::Settings MigFiles(const RuntimePaths& paths, const gpu::GpuSource& source) {
  std::string kept = paths.history;
  const size_t name = kept.find_last_of('/') + 1;
  if (const size_t at = kept.find("history", name); at != std::string::npos)
    kept.replace(at, 7, "mig-layouts");
  if (kept.ends_with(".db")) kept.replace(kept.size() - 3, 3, ".json");
  if (kept == paths.history) kept += ".mig-layouts.json";
  return {.change_file = paths.dir + "/mig-change.json",
          .kept_file = kept,
          .rights_file = source.dir + "/dev/nvidia-caps/nvidia-cap1"};
}

}  // namespace

struct Daemon::Parts {
  Parts(DaemonSettings s, gpu::GpuSource source, gpu::Nvml& nvml, const Clock& c)
      : settings(std::move(s)),
        clock(c),
        events(settings.paths.audit, clock),
        machine(std::move(source), nvml, loop, events, settings.paths.api_socket),
        xids(machine, events, clock),
        monitor(machine, tenants, events, clock),
        reaper(machine, tenants, monitor, loop, clock),
        desk(machine, tenants, monitor, loop, clock),
        reclaim(machine, tenants, events, clock),
        idle(machine, tenants, reclaim, events, clock, settings.policy),
        leases(machine, tenants, monitor, events, loop, clock,
               {settings.paths.session_socket, settings.guard_library, settings.paths.store},
               settings.policy),
        mps(machine, nvml, tenants, events, loop, clock,
            {.dir = settings.paths.dir + "/mps",
             .for_everyone = settings.for_everyone,
             .idle_time = settings.mps_idle_time}),
        mps_faults(mps, machine, tenants, events, clock),
        mps_places(machine, tenants, clock),
        mps_clients(mps, machine, tenants, clock),
        keeper(loop, clock, settings.paths.keeper_socket, settings.keeper_program),
        held(machine, tenants, keeper, events, clock, settings.hold),
        gates(machine, tenants, settings.gate),
        turn_desk(tenants, events, settings.turns),
        turns(loop),
        sessions(machine, tenants, monitor, reaper, desk, reclaim, held, leases, turns, loop, clock),
        report(machine, tenants, leases, clock),
        events_api(events, machine, loop, clock),
        history(loop, clock,
                {.path = settings.paths.history,
                 .keep = settings.history_keep,
                 .simulated = machine.source().simulated}),
        mps_api(mps, machine, monitor, events, clock),
        mig(machine, tenants, monitor, events, loop, clock, MigFiles(settings.paths, machine.source())),
        mig_api(mig, machine, clock),
        api(report, machine, tenants, leases, monitor, events_api, mps_api, mig_api, history),
        metrics(machine, tenants, leases, monitor, events, turn_desk.waits(), clock, settings.metrics.labels),
        api_server(loop, turns, clock,
                   [this](const ApiServer::Request& request, ApiServer::Reply reply) {
                     if (request.path == "/metrics") return reply(metrics.Answer(request));
                     api.Handle(request, std::move(reply));
                   }),
        metrics_server(loop, turns, clock,
                       [this](const ApiServer::Request& request, const ApiServer::Reply& reply) {
                         reply(metrics.AnswerOnTcp(request));
                       }) {
    leases.on_granted = [this](const Tenant& tenant) { metrics.Granted(tenant); };
    leases.on_ended = [this](const Tenant& tenant) { metrics.Ended(tenant); };
    monitor.adopt = [this](Tenant& tenant, const ProcessName& process) {
      Member* member = reaper.Adopt(tenant, process).value_or(nullptr);
      if (member) member->guard_before = MayHaveProcessPage(process.pid);
      return member;
    };
    monitor.is_mps_server = [this](const gpu::Uuid& gpu, pid_t pid) { return mps.IsServer(gpu, pid); };
    machine.on_found = [this] { leases.TakeOverLate(); };
    desk.death_unnoticed = [this](const Tenant& tenant) { return reaper.DeathUnnoticed(tenant); };
    desk.make_room = [this](const Tenant& tenant, core::ProcessKey process, size_t gpu, uint64_t bytes,
                            bool own_limit) {
      return reclaim.MakeRoom(tenant, process, gpu, bytes, own_limit);
    };
    leases.on_past = [this](const std::string& id, std::string past) { history.Add(id, std::move(past)); };
    history.on_room = [this] { leases.TellPast(); };
    history.on_kept = [this](const std::string& id) { leases.Kept(id); };
    leases.cannot_take_over = [](const Error& why) { EndForTheNextDaemon(why.ToString()); };
    leases.prepare = [this](const Tenant& tenant, auto ready) {
      std::vector<gpu::Uuid> gpus;
      for (const core::Share& share : tenant.shares) gpus.push_back(share.gpu);
      mps.Prepare(gpus, std::move(ready));
    };
    leases.terminate_clients = [this](const Tenant& tenant, const std::function<void()>& done) {
      return mps.TerminateClients(tenant, done);
    };
    leases.environment_of = [this](const Tenant& tenant) { return mps.EnvironmentOf(tenant); };
    leases.why_not_served = [this](const Tenant& tenant) {
      const std::string why = mps.WhyNotEnforced(tenant);
      return why.empty() ? mps_clients.WhyNotServed(tenant) : why;
    };
    leases.mps_of = [this](size_t gpu_index) { return mps.Snapshot(gpu_index); };
    leases.enquire = [this](Tenant& tenant, auto go_on) {
      return mps_faults.Enquire(tenant, std::move(go_on));
    };
    mig.stop = [this](const std::string& id, const std::string& reason) {
      return leases.Stop(id, StopRequest{}, reason);
    };
    mig.on_changed = [this] { leases.ScheduleSoon(); };
    leases.why_apart = [this](const std::string& before, uid_t owner) {
      return mps_faults.WhyApart(before, owner);
    };
    mps_faults.on_marked = [this](const Tenant& tenant) { leases.SaveOrSay(tenant); };
    desk.on_refused = [this](Tenant& tenant) { leases.NoteRefused(tenant); };
    sessions.mps_place = [this](Tenant& tenant, Member& member, unsigned slot, uint32_t driver_error) {
      return mps_places.Ask(tenant, member, slot, driver_error);
    };
    sessions.gate = [this](Tenant& tenant, Member& member, uint32_t first, std::vector<UniqueFd>& own) {
      return gates.Ask(tenant, member, first, own);
    };
    mps.on_lost_work = [this](const MpsDomain& domain, bool fault) {
      keeper.Look();
      mps_faults.WorkIsLost(domain, fault);
    };
    mps.on_room = [this] {
      leases.ScheduleSoon();
      LeaveIfDone();
    };
    leases.make_room = [this](const auto& waiting) { return reclaim.MakeRoomFor(waiting); };
    reclaim.allocating = [this](core::ProcessKey process) { return desk.Waits(process); };
    keeper.on_lost = [this] { keeper.Hold(WhatToKeep(machine, tenants)); };
    leases.on_changed = [this] {
      keeper.on_lost();
      gates.Update();
    };
    gates.on_updated = [this] { turn_desk.Update(); };
    keeper.on_connected = [this] { held.CallAgain(); };
    keeper.on_gone = [this] { held.KeeperGone(); };
    held.on_let_go = [this](const Member& member) { mps_faults.NoteLetGo(member); };
    reaper.on_died = [this](Tenant& tenant, Member& member) {
      gates.Died(member);
      held.Died(tenant, member);
      mps_faults.NoteDeath(tenant, member);
    };
    reaper.on_freed = [this](Tenant& tenant, Member& member) { held.Freed(tenant, member); };
    reaper.on_returned = [this](Tenant& tenant) {
      leases.CheckEnd(tenant);
      gates.Update();
      leases.ScheduleSoon();
      loop.Post([this] { desk.Retry(); });
    };
  }

  Status Listen() {
    // The API first: who waits for the session socket finds both.
    if (!api_server.Listening()) {
      auto listener = Listener("api", settings.paths.api_socket, SOCK_STREAM);
      if (!listener) return tl::unexpected(listener.error());
      api_server.Listen(std::move(*listener));
    }
    if (!sessions.Listening()) {
      auto listener = Listener("session", settings.paths.session_socket, SOCK_SEQPACKET);
      if (!listener) return tl::unexpected(listener.error());
      sessions.Listen(std::move(*listener));
    }
    return {};
  }

  // What it cannot have is no reason to serve nobody.
  void ListenForMetrics() {
    if (!settings.metrics.listen || metrics_server.Listening()) return;
    auto listener = ipc::TcpListener::Listen(*settings.metrics.listen);
    const std::string why = listener ? "" : listener.error().ToString();
    if (!listener && why != no_metrics) LogError("metrics.listen: {}", why);
    no_metrics = why;
    if (!listener) return;
    LogInfo("metrics on http://{}/metrics", settings.metrics.listen->ToString());
    metrics_server.Listen(std::move(*listener));
  }

  // Whoever removes sockets, or all of the directory, does not end the tenants: the
  // daemon puts its files back.
  void KeepFiles() {
    const bool listening = api_server.Listening() && sessions.Listening();
    if (!listening) {
      Status kept = place.Take();
      if (kept) kept = Listen();
      const std::string why = kept ? "" : kept.error().ToString();
      if (kept) LogWarning("the sockets in {} were gone: they are back", settings.paths.dir);
      if (!kept && why != place_lost) LogError("the sockets are gone: {}", why);
      place_lost = why;
    }
    ListenForMetrics();
    FollowLogFile();
    leases.KeepStore();
  }

  void Tick() {
    KeepFiles();
    machine.ClaimFree();
    machine.LookForInstances();
    machine.Recover(clock.Now(), leases.WaitForGpus());
    xids.Tick();
    machine.ReadComputeModes();
    leases.TakeOverLate();
    monitor.RefreshAll();
    idle.Tick();
    NoteUntoldRefusals(tenants, machine, clock);
    for (const auto& [id, tenant] : tenants.live()) leases.NoteRefused(*tenant);
    leases.WatchGuards();
    leases.Schedule();
    sessions.DropSilent();
    events.Tick();
    mig.Tick();
    mps.Tick();
    mps_places.Tick();
    mps_clients.Tick();
    keeper.Hold(WhatToKeep(machine, tenants));
    held.Tick();
    gates.Update();
    turn_desk.Tick();
    if (clock.Now() >= sample_at) {
      sample_at = clock.Now() + kSampleEach;
      history.Add(SampleGpus(machine, tenants, clock));
      leases.SaveAll();
    }
    if (!leases.Idle() || !mps.Idle() || !mig.UnderWay().empty())
      idle_since.reset();
    else if (!idle_since)
      idle_since = clock.Now();
    if (settings.idle_exit && idle_since && clock.Now() - *idle_since >= *settings.idle_exit) {
      events.Note({.kind = EventKind::kDaemonStopped,
                   .text = fmt::format("no tenant for {}: leaving", FormatDuration(*settings.idle_exit))});
      Leave();
    }
    TellState();
  }

  // A second time: at once.
  void Leave() {
    leases.SaveAll();
    if (leaving) return loop.Stop();
    settings.service.Notify("STOPPING=1");
    mps.EndUnused();
    leaving = loop.After(kLeaveLimit, [this] { loop.Stop(); });
    LeaveIfDone();
  }

  // Until the control daemons of MPS that nobody needs are gone: who leaves before takes
  // its own command to them along.
  void LeaveIfDone() {
    if (leaving && !mps.Ending() && mig.UnderWay().empty()) loop.Stop();
  }

  // What `systemctl status` shows.
  void TellState() {
    const std::string state = fmt::format("STATUS={} GPU(s), {} tenant(s), {} waiting", machine.GpuCount(),
                                          tenants.live().size(), leases.waiters().size());
    if (state == told_state) return;
    told_state = state;
    settings.service.Notify(state);
  }

  // The socket that the service manager opened, or one of our own.
  Result<ipc::UnixListener> Listener(const char* name, const std::string& path, int type) {
    auto passed = settings.service.TakeSocket(name, type);
    if (!passed) return tl::unexpected(passed.error());
    if (passed->valid()) return ipc::UnixListener::Adopt(std::move(*passed));
    const mode_t mode = !settings.for_everyone ? 0600 : settings.socket_group ? 0660 : 0666;
    auto listener = ipc::UnixListener::Listen(path, type, settings.socket_group ? 0600 : mode);
    if (!listener || !settings.socket_group) return listener;
    // In this order: no moment at which another group has the rights.
    if (::chown(path.c_str(), static_cast<uid_t>(-1), *settings.socket_group) != 0 ||
        ::chmod(path.c_str(), mode) != 0) {
      return Fail(Code::kUnavailable, fmt::format("cannot give {} to group {}: {}", path,
                                                  *settings.socket_group, std::strerror(errno)));
    }
    return listener;
  }

  void Reload() {
    if (!settings.reload) return;
    auto policy = settings.reload();
    if (!policy) {
      LogError("the configuration stays as it was: {}", policy.error().ToString());
      return;
    }
    settings.policy = std::move(*policy);
    LogInfo("the configuration was read again");
    leases.PolicyChanged();
  }

  DaemonSettings settings;
  const Clock& clock;
  EventLoop loop;
  EventLog events;
  Tenants tenants;
  Machine machine;
  Xids xids;
  Monitor monitor;
  Reaper reaper;
  CreditDesk desk;
  Reclaim reclaim;
  IdleWatch idle;
  Leases leases;
  MpsService mps;
  MpsFaults mps_faults;
  MpsPlaces mps_places;
  MpsClients mps_clients;
  KeeperLink keeper;
  HeldDescriptors held;
  Gates gates;
  TurnDesk turn_desk;
  FairTurns turns;
  Sessions sessions;
  Report report;
  EventsApi events_api;
  History history;
  MpsApi mps_api;
  MigService mig;
  MigApi mig_api;
  Api api;
  Metrics metrics;
  ApiServer api_server, metrics_server;
  EventLoop::Watch tick, signals, reload, watchdog, leaving;
  Place place{settings.paths};
  std::string no_metrics;  // why they cannot be had on TCP, as it was said
  std::string place_lost;  // why the sockets could not be put back, as it was said
  std::optional<Time> idle_since;
  Time sample_at{};  // of the GPUs, for the history
  std::string told_state;
};

Daemon::Daemon(DaemonSettings settings, gpu::GpuSource source, gpu::Nvml& nvml, const Clock& clock)
    : parts_(std::make_unique<Parts>(std::move(settings), std::move(source), nvml, clock)) {}

Daemon::~Daemon() = default;

Status Daemon::Start() {
  Parts& parts = *parts_;
  parts.machine.Start(parts.keeper.Take());
  parts.xids.Tick();
  parts.mps.TakeOver();
  parts.leases.TakeOver();
  parts.keeper.Hold(WhatToKeep(parts.machine, parts.tenants));
  parts.monitor.RefreshAll();
  // When it is known who is where.
  parts.mig.Recover();
  if (Status status = parts.Listen(); !status) return status;
  parts.ListenForMetrics();
  parts.tick = parts.loop.Every(kTick, [&parts] { parts.Tick(); });
  parts.signals = parts.loop.OnSignals({SIGTERM, SIGINT}, [&parts](int signal) {
    parts.events.Note({.kind = EventKind::kDaemonStopped,
                       .text = fmt::format("signal {}: leaving; {} tenant(s) go on with their limits", signal,
                                           parts.tenants.live().size())});
    parts.Leave();
  });
  parts.reload = parts.loop.OnSignals({SIGHUP}, [&parts](int) { parts.Reload(); });
  // From the loop, twice in the time: a loop that hangs says nothing.
  if (const auto period = parts.settings.service.watchdog())
    parts.watchdog = parts.loop.Every(*period / 2, [&parts] { parts.settings.service.Notify("WATCHDOG=1"); });
  parts.settings.service.Notify("READY=1");
  parts.TellState();
  parts.events.Note(
      {.kind = EventKind::kDaemonStarted,
       .text = fmt::format("ready: pid {}, {} GPU(s){}, {}", ::getpid(), parts.machine.GpuCount(),
                           parts.machine.source().simulated ? " (software)" : "",
                           parts.settings.paths.session_socket)});
  return {};
}

void Daemon::Run() { parts_->loop.Run(); }

}  // namespace gpumux::daemon
