// SPDX-License-Identifier: Apache-2.0
//
// `gpumux run`: from the options through the request to the program and its
// closing line.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "cli/commands.h"
#include "cli/cpu_binding.h"
#include "cli/daemon_link.h"
#include "cli/daemon_start.h"
#include "cli/endpoints.h"
#include "cli/environment.h"
#include "cli/program_lookup.h"
#include "cli/run_mig.h"
#include "cli/run_options.h"
#include "cli/run_report.h"
#include "cli/run_request.h"
#include "cli/supervise.h"
#include "cli/terminal.h"
#include "cli/waiting_line.h"
#include "config/sources.h"
#include "gpumux/abi/session.h"
#include "ipc/session_client.h"

extern char** environ;

namespace gpumux::cli {
namespace {

using ipc::SessionClient;
using ipc::SessionEvent;
using Steady = std::chrono::steady_clock;

constexpr int kInternalFailure = 125;
// How many daemons may die under one request.
constexpr int kAskAgain = 8;
// The daemon ends the waiting itself; this covers one that does not.
constexpr auto kWaitSlack = std::chrono::seconds(5);
// A daemon has a word for every request at once: granted, refused, or waits and why.
constexpr auto kFirstWord = std::chrono::seconds(10);
// A summary that does not come in this time is given up: the program's status matters more.
constexpr auto kSummaryPatience = std::chrono::seconds(3);

int ReportRun(const Error& error, bool json) {
  const int status = Report(error, json);
  return error.code == Code::kInternal ? kInternalFailure : status;
}

// The daemon sends an exit status; the code in JSON is from the same list.
Code CodeOfRefusal(const SessionEvent& event) {
  if (event.exit_code == ExitStatus(Code::kConflict))
    return event.reason == GPUMUX_REASON_DEVICE_FULL ? Code::kConflict : Code::kDenied;
  for (const Code code :
       {Code::kInvalid, Code::kUnavailable, Code::kTimeout, Code::kNotFound, Code::kUnsupported}) {
    if (event.exit_code == ExitStatus(code)) return code;
  }
  return Code::kInternal;
}

Result<SessionClient> ConnectAny(const Endpoints& endpoints) {
  for (const RuntimePaths& paths : endpoints.all) {
    auto client = SessionClient::Connect(paths.session_socket);
    if (client) return client;
    // A daemon that refuses us is no reason to start a second one beside it.
    if (client.error().code == Code::kDenied) {
      return Fail(Code::kUnavailable, client.error().message, "you may not use this daemon");
    }
  }
  return Fail(Code::kUnavailable, "no daemon runs");
}

// A session with the request sent. A daemon that is idle may end just between
// our connect and our request: then once more.
Result<SessionClient> SendRequest(const Endpoints& endpoints, const std::string& request) {
  Status sent;
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto client = ConnectAny(endpoints);
    if (!client && client.error().message == "no daemon runs") {
      // One that died as it started may have died of something else than us.
      sent = StartUserDaemon(endpoints.own);
      if (!sent) continue;
      client = SessionClient::Connect(endpoints.own.session_socket);
    }
    if (!client) {
      sent = tl::unexpected(client.error());
      continue;
    }
    sent = client->SendRequest(request);
    if (sent) return client;
  }
  return tl::unexpected(sent.error());
}

// Waits for the daemon's word on the request.
class Waiting {
 public:
  Waiting(SessionClient& session, const Signals& signals, const RunOptions& options)
      : session_(session),
        signals_(signals),
        options_(options),
        line_(TerminalOf(STDERR_FILENO), options.quiet) {}

  struct Outcome {
    std::optional<SessionEvent> granted = std::nullopt;
    int exit_status = 0;       // without a grant
    bool daemon_left = false;  // without a word
    bool said_something = false;
  };

  Outcome Run() {
    const auto started = Steady::now();
    bool heard = false;
    for (;;) {
      std::optional<Steady::time_point> deadline;
      if (options_.wait_limit) deadline = started + *options_.wait_limit + kWaitSlack;
      if (!heard) deadline = std::min(deadline.value_or(Steady::time_point::max()), started + kFirstWord);
      int64_t left = -1;
      if (deadline)
        left = std::max<int64_t>(
            0, (std::chrono::ceil<std::chrono::milliseconds>(*deadline - Steady::now())).count());
      pollfd entries[] = {{session_.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
      const int ready = ::poll(entries, 2, static_cast<int>(std::min<int64_t>(left, INT32_MAX)));
      if (ready < 0) continue;
      // Only after a look at the socket: we may have been stopped past the deadline.
      if (ready == 0 && left == 0) return Refused(heard ? NoRoom() : NoAnswer());
      if (const int status = TakeSignals(); status != 0) return {.exit_status = status};
      if (entries[0].revents == 0) continue;
      auto event = session_.Next(std::chrono::milliseconds(0));
      if (!event)
        return Refused(
            {Code::kUnavailable, event.error().message, "restart gpumuxd: it may be of another version"});
      if (!*event) continue;
      heard |= (*event)->type == SessionEvent::Type::kQueued;
      switch ((*event)->type) {
        case SessionEvent::Type::kQueued:
          if (const auto queued = ParseQueued((*event)->json))
            line_.Show(QueuedLine(*queued, std::chrono::system_clock::now()));
          break;
        case SessionEvent::Type::kGranted:
          line_.Clear();
          return {.granted = std::move(*event), .said_something = line_.said_something()};
        case SessionEvent::Type::kRefused:
          return Refused({CodeOfRefusal(**event), Plain((*event)->refusal, 600), ""});
        case SessionEvent::Type::kClosed:
          return {.daemon_left = true};
        case SessionEvent::Type::kSummary:
        case SessionEvent::Type::kResumed:
        case SessionEvent::Type::kNoted:
          break;
      }
    }
  }

 private:
  static Error NoAnswer() {
    return {Code::kUnavailable, "the daemon does not answer",
            "it may hang: see gpumuxd.log, or end it and try again"};
  }
  static Error NoRoom() {
    return {Code::kTimeout, "no room came in time", "ask for less, or wait longer with --wait=T"};
  }

  // The exit status when a signal ended the waiting, else 0.
  int TakeSignals() {
    signalfd_siginfo info;
    while (::read(signals_.fd(), &info, sizeof info) == sizeof info) {
      switch (const int signal = static_cast<int>(info.ssi_signo)) {
        case SIGINT:
        case SIGQUIT:
        case SIGTERM:
        case SIGHUP:
          line_.Clear();
          if (!options_.quiet) Say("cancelled");
          return 128 + signal;
        case SIGTSTP:
          line_.Clear();
          ::raise(SIGSTOP);
          line_.ShowAgain();
          break;
        default:
          break;
      }
    }
    return 0;
  }

  Outcome Refused(const Error& error) {
    line_.Clear();
    return {.exit_status = ReportRun(error, options_.json)};
  }

  SessionClient& session_;
  const Signals& signals_;
  const RunOptions& options_;
  WaitingLine line_;
};

// After the program: the daemon's record of it, or nothing.
std::optional<std::string> TakeSummary(DaemonLink& link) {
  if (auto early = link.TakeEarlySummary()) return early;
  if (!link.session()) return std::nullopt;
  SessionClient& session = *link.session();
  const auto deadline = Steady::now() + kSummaryPatience;
  while (Steady::now() < deadline) {
    const auto event = session.Next(std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now()));
    if (!event || !*event || (*event)->type == SessionEvent::Type::kClosed) return std::nullopt;
    if ((*event)->type == SessionEvent::Type::kSummary) return (*event)->json;
  }
  return std::nullopt;
}

// `note`: what is to be said beside the daemon's record; may be empty.
void Close(const std::optional<std::string>& summary, const RunOptions& options, bool simulated,
           std::chrono::nanoseconds took, const std::string& note) {
  if (options.json) {
    PrintError(RunJson(summary ? *summary : "null", simulated) + "\n");
  } else {
    Say((summary ? ClosingLine(*summary, took) : ClosingLineWithoutRecord(took)) + note);
  }
}

struct Ran {
  int status = 0;
  std::string lost_by_others;  // why; empty: it was not
  std::string tenant;          // its id, if it was granted
  bool refused = false;
};

// The granted program, until its end. `restart`: it would be started again if
// others were the reason, and then this is not the end.
Ran RunProgram(DaemonLink& link, const Granted& granted, const std::string& path, const RunOptions& options,
               const Signals& signals, bool restart) {
  const auto started = Steady::now();
  std::string note;
  std::optional<CpuBinding> binding;
  if (options.cpu_affinity == "auto") {
    binding.emplace(granted.near);
    if (!binding->not_bound().empty())
      note = "; it ran on any processor, though --cpu-affinity auto: " + binding->not_bound();
  }
  auto program =
      Program::Prepare(path, options.command, TenantEnvironment(environ, granted.env, granted.env_prepend),
                       signals, options.own_group ? Program::Group::kOwn : Program::Group::kOfRun);
  // The program has it now; `run` itself, and a daemon that it may start, stay free.
  binding.reset();
  if (!program) return {ReportRun(program.error(), options.json), "", ""};
  // A daemon that is gone by now changes nothing for the program.
  link.SetProgram(program->pid());
  (void)link.SendStarted(RunStartedJson(program->pid()));
  if (const Status going = program->Go(); !going) {
    (void)link.SendEnded(RunEndedJson(ExitStatus(going.error().code), std::nullopt));
    return {ReportRun({going.error().code,
                       fmt::format("cannot run {}: {}", Plain(path, 200), going.error().message), ""},
                      options.json),
            "", ""};
  }
  const ProgramEnd end = program->Wait(signals, link);
  const auto took = Steady::now() - started;
  const bool told = link.SendEnded(RunEndedJson(end.exit_code, end.signal));
  const bool line = !options.quiet && (options.summary || TerminalOf(STDERR_FILENO).is_tty);
  const bool failed = end.status() != 0;
  if (!line && !options.json && !(restart && failed)) return {end.status(), "", ""};
  const auto summary = told ? TakeSummary(link) : std::nullopt;
  Ran ran{end.status(), summary && failed ? LostByOthers(*summary) : "", granted.tenant_id};
  if ((line || options.json) && (!restart || ran.lost_by_others.empty()))
    Close(summary, options, granted.simulated, took, note);
  return ran;
}

// One lease, from the request to the program's end.
Ran RunOnce(const Endpoints& endpoints, const std::string& request, const std::string& path,
            const RunOptions& options, const Signals& signals, bool restart) {
  auto session = SendRequest(endpoints, request);
  if (!session) return {ReportRun(session.error(), options.json), "", ""};

  auto outcome = Waiting(*session, signals, options).Run();
  for (int again = 0; outcome.daemon_left && again < kAskAgain; ++again) {
    // It was idle and ended just when we came, or died while we waited: the next
    // one is asked anew.
    session = SendRequest(endpoints, request);
    if (!session) return {ReportRun(session.error(), options.json), "", ""};
    outcome = Waiting(*session, signals, options).Run();
  }
  if (outcome.daemon_left) {
    return {ReportRun({Code::kUnavailable, "the daemon ended before it answered", "try again"}, options.json),
            "", ""};
  }
  if (!outcome.granted) return {outcome.exit_status, "", "", true};
  const auto granted = ParseGranted(outcome.granted->json);
  if (!granted) return {ReportRun(granted.error(), options.json), "", ""};
  const bool on_terminal = TerminalOf(STDERR_FILENO).is_tty;
  if (!options.quiet && !options.json && (on_terminal || options.summary || outcome.said_something))
    Say(GrantedLine(*granted));
  // `outcome` keeps the locks of the GPUs until the program has ended.
  std::vector<int> locks;
  for (const UniqueFd& lock : outcome.granted->locks) locks.push_back(lock.get());
  DaemonLink link(std::move(*session), endpoints, granted->tenant_id, std::move(locks));
  return RunProgram(link, *granted, path, options, signals, restart);
}

}  // namespace

int RunMain(const std::vector<std::string>& arguments) {
  const auto configured = config::Load(config::Reader::kUser);
  const auto options = ParseRunOptions(arguments, config::RunDefaultsOf(configured.settings));
  if (!options) return ReportRun(options.error(), false);
  if (options->help) return Print(HelpText(RunSpec())) ? 0 : 1;
  if (!configured.problems.empty()) return ReportRun(config::ErrorOf(configured.problems), options->json);
  const auto path = FindProgram(options->command[0]);
  if (!path) return ReportRun(path.error(), options->json);
  const auto endpoints = FindEndpoints();
  if (!endpoints) return ReportRun(endpoints.error(), options->json);
  if (endpoints->source.simulated && !options->quiet && !SoftwareGpuWasAskedFor()) {
    Say("no NVIDIA driver: using the software GPU (simulated)");
  }
  std::error_code no_folder;
  const std::string folder = std::filesystem::current_path(no_folder).string();
  std::string request = RunRequestJson(*options, folder);
  const auto signals = Signals::Block();
  if (!signals) return ReportRun(signals.error(), options->json);
  if (options->allow_reconfigure) {
    const std::string made = InstanceFor(*options, *endpoints, /*make=*/true);
    if (!made.empty() && !options->quiet) Say(made);
  }
  for (unsigned restarts = 0;; ++restarts) {
    const Ran ran =
        RunOnce(*endpoints, request, path.value(), *options, *signals, restarts < options->restarts);
    if (options->mode == "mig" && ran.refused && !options->quiet) {
      if (const std::string way = InstanceFor(*options, *endpoints, /*make=*/false); !way.empty()) Say(way);
    }
    if (ran.lost_by_others.empty() || restarts >= options->restarts) return ran.status;
    request = RunRequestJson(*options, folder, ran.tenant);
    if (!options->quiet)
      Say(fmt::format("{}: starting again ({} of {})", ran.lost_by_others, restarts + 1, options->restarts));
  }
}

}  // namespace gpumux::cli
