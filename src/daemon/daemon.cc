// SPDX-License-Identifier: Apache-2.0
#include "daemon/daemon.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "base/units.h"
#include "daemon/api.h"
#include "daemon/events.h"
#include "daemon/process_tree.h"
#include "daemon/sessions.h"

namespace gpumux::daemon {

namespace {
constexpr Time kTick = std::chrono::seconds(1);
}  // namespace

struct Daemon::Parts {
  Parts(DaemonSettings s, gpu::GpuSource source, gpu::Nvml& nvml, const Clock& c)
      : settings(std::move(s)),
        clock(c),
        events(settings.paths.audit, clock),
        machine(std::move(source), nvml, loop, events, settings.paths.api_socket),
        monitor(machine, tenants, events, clock),
        reaper(machine, tenants, monitor, loop, clock),
        desk(machine, tenants, monitor, loop, clock),
        reclaim(machine, tenants, events, clock),
        leases(machine, tenants, monitor, events, loop, clock,
               {settings.paths.session_socket, settings.guard_library, settings.paths.store},
               settings.policy),
        sessions(machine, tenants, monitor, reaper, desk, reclaim, leases, loop, clock),
        report(machine, tenants, leases, clock),
        events_api(events, machine, loop, clock),
        api(report, tenants, leases, monitor, events_api),
        api_server(loop, [this](const ApiServer::Request& request, ApiServer::Reply reply) {
          api.Handle(request, std::move(reply));
        }) {
    monitor.adopt = [this](Tenant& tenant, const ProcessName& process) {
      Member* member = reaper.Adopt(tenant, process).value_or(nullptr);
      if (member) member->guard_before = MayHaveProcessPage(process.pid);
      return member;
    };
    desk.death_unnoticed = [this](const Tenant& tenant) { return reaper.DeathUnnoticed(tenant); };
    desk.make_room = [this](const Tenant& tenant, core::ProcessKey process, size_t gpu, uint64_t bytes,
                            bool own_limit) {
      return reclaim.MakeRoom(tenant, process, gpu, bytes, own_limit);
    };
    leases.make_room = [this](const auto& waiting) { return reclaim.MakeRoomFor(waiting); };
    reclaim.allocating = [this](core::ProcessKey process) { return desk.Waits(process); };
    reaper.on_returned = [this](Tenant& tenant) {
      leases.CheckEnd(tenant);
      leases.ScheduleSoon();
      loop.Post([this] { desk.Retry(); });
    };
  }

  void Tick() {
    machine.ClaimFree();
    monitor.RefreshAll();
    leases.WatchGuards();
    leases.Schedule();
    sessions.DropSilent();
    events.Tick();
    if (!leases.Idle())
      idle_since.reset();
    else if (!idle_since)
      idle_since = clock.Now();
    if (settings.idle_exit && idle_since && clock.Now() - *idle_since >= *settings.idle_exit) {
      events.Note({.kind = EventKind::kDaemonStopped,
                   .text = fmt::format("no tenant for {}: leaving", FormatDuration(*settings.idle_exit))});
      loop.Stop();
    }
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
  Monitor monitor;
  Reaper reaper;
  CreditDesk desk;
  Reclaim reclaim;
  Leases leases;
  Sessions sessions;
  Report report;
  EventsApi events_api;
  Api api;
  ApiServer api_server;
  EventLoop::Watch tick, signals, reload;
  std::optional<Time> idle_since;
};

Daemon::Daemon(DaemonSettings settings, gpu::GpuSource source, gpu::Nvml& nvml, const Clock& clock)
    : parts_(std::make_unique<Parts>(std::move(settings), std::move(source), nvml, clock)) {}

Daemon::~Daemon() = default;

Status Daemon::Start() {
  Parts& parts = *parts_;
  parts.machine.Start();
  parts.leases.TakeOver();
  parts.monitor.RefreshAll();
  const mode_t mode = parts.settings.for_everyone ? 0666 : 0600;
  // The API first: who waits for the session socket finds both.
  if (Status status = parts.api_server.Listen(parts.settings.paths.api_socket, mode); !status) return status;
  if (Status status = parts.sessions.Listen(parts.settings.paths.session_socket, mode); !status)
    return status;
  parts.tick = parts.loop.Every(kTick, [&parts] { parts.Tick(); });
  parts.signals = parts.loop.OnSignals({SIGTERM, SIGINT}, [&parts](int signal) {
    parts.events.Note({.kind = EventKind::kDaemonStopped,
                       .text = fmt::format("signal {}: leaving; {} tenant(s) go on with their limits", signal,
                                           parts.tenants.live().size())});
    parts.loop.Stop();
  });
  parts.reload = parts.loop.OnSignals({SIGHUP}, [&parts](int) { parts.Reload(); });
  parts.events.Note(
      {.kind = EventKind::kDaemonStarted,
       .text = fmt::format("ready: pid {}, {} GPU(s){}, {}", ::getpid(), parts.machine.gpus().size(),
                           parts.machine.source().simulated ? " (software)" : "",
                           parts.settings.paths.session_socket)});
  return {};
}

void Daemon::Run() { parts_->loop.Run(); }

}  // namespace gpumux::daemon
