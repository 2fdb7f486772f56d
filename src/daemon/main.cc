// SPDX-License-Identifier: Apache-2.0
//
// gpumuxd: owns the ledgers of this machine's GPUs and keeps every promise.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/clock.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/process.h"
#include "daemon/configured.h"
#include "daemon/daemon.h"
#include "daemon/ending.h"
#include "daemon/version.h"
#include "gpu/nvml_instances.h"

namespace gpumux::daemon {
namespace {

constexpr char kSocketGroup[] = "gpumux";

struct Options {
  bool foreground = false;
  bool system = false;
  double idle_exit_seconds = 0;
  bool on_demand = false;
  std::string runtime_dir;
};

int Complain(const Error& error) {
  LogError("{}", error.ToString());
  std::fprintf(stderr, "gpumuxd: %s\n", error.ToString().c_str());
  return ExitStatus(error.code);
}

// One descriptor a connection, process and page: the hard limit is the only one
// that matters.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

Result<RuntimePaths> FindPaths(const Options& options, bool simulated) {
  if (options.system) {
    if (::getuid() != 0)
      return Fail(Code::kDenied, "--system is for root", "without it gpumuxd serves your own user");
    RuntimePaths paths = options.runtime_dir.empty() ? MachinePaths() : PathsIn(options.runtime_dir);
    if (Status status = EnsureMachineDir(paths.dir); !status) return tl::unexpected(status.error());
    // systemd's LogsDirectory=: what outlives a boot, unlike all else.
    if (const char* logs = std::getenv("LOGS_DIRECTORY"); logs && *logs == '/')
      paths.audit = std::string(logs) + "/audit.log";
    if (const char* state = std::getenv("STATE_DIRECTORY"); state && *state == '/')
      paths.history = std::string(state) + "/history.db";
    if (simulated && options.runtime_dir.empty()) paths.history += ".sim";
    return paths;
  }
  if (options.runtime_dir.empty()) return FindRuntimePaths(simulated);
  if (Status status = EnsurePrivateDir(options.runtime_dir); !status) return tl::unexpected(status.error());
  return PathsIn(options.runtime_dir);
}

// Who may use the machine's daemon: the members of the group, or of root's where there is none.
std::optional<gid_t> SocketGroup(std::optional<gid_t> configured, bool passed) {
  if (passed && configured)
    LogWarning(
        "daemon.socket_group means nothing to sockets that systemd opened: systemctl edit "
        "gpumuxd.socket gpumuxd-api.socket");
  if (passed) return std::nullopt;
  if (configured) return configured;
  if (const group* found = ::getgrnam(kSocketGroup)) return found->gr_gid;
  LogWarning("there is no group '{}': nobody but root can use this daemon (see packaging/README.md)",
             kSocketGroup);
  return 0;
}

constexpr int kLooksAtLock = 50;
constexpr useconds_t kLookUs = 10'000;

// Held until the process ends, however it ends.
Result<UniqueFd> TakeLock(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return Fail(Code::kInternal, "cannot open " + path + ": " + std::strerror(errno));
  // One that was killed holds it until the kernel has taken it apart.
  bool taken = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  for (int look = 0; !taken && look < kLooksAtLock; ++look) {
    ::usleep(kLookUs);
    taken = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  }
  if (!taken) {
    return Fail(Code::kConflict, "another gpumuxd runs here already (" + path + ")", "use it: gpumux status");
  }
  return fd;
}

int Run(const Options& options) {
  RaiseDescriptorLimit();
  ::signal(SIGPIPE, SIG_IGN);
  EndWhenMemoryRunsOut();
  // First: files that this process opens must not take the numbers of its sockets.
  ServiceManager service = ServiceManager::FromEnvironment();
  const auto source = gpu::FindGpuSource();
  if (!source) return Complain(source.error());
  const auto paths = FindPaths(options, source->simulated);
  if (!paths) return Complain(paths.error());
  if (Status made = EnsureHistoryDir(*paths); !made) LogWarning("history: {}", made.error().ToString());
  const auto lock = TakeLock(paths->lock);
  if (!lock) return Complain(lock.error());
  if (!options.foreground) {
    if (Status status = SetLogFile(paths->log); !status) return Complain(status.error());
  }
  auto nvml = gpu::OpenNvmlWithInstances(*source);
  if (!nvml) return Complain(nvml.error());
  DaemonSettings settings;
  settings.paths = *paths;
  const auto exe = ExecutableDir();
  if (!exe) return Complain(exe.error());
  settings.keeper_program = *exe + "/gpumux-keeper";
  settings.guard_library = exe->substr(0, exe->find_last_of('/')) + "/lib/gpumux/libgpumux-guard.so";
  settings.for_everyone = options.system;
  if (Status status = Configure(settings, options.on_demand); !status) return Complain(status.error());
  if (options.system) settings.socket_group = SocketGroup(settings.socket_group, service.has_sockets());
  settings.service = std::move(service);
  if (options.idle_exit_seconds > 0) {
    settings.idle_exit = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(options.idle_exit_seconds));
  }
  const SystemClock clock;
  Daemon daemon(std::move(settings), *source, **nvml, clock);
  if (Status status = daemon.Start(); !status) return Complain(status.error());
  daemon.Run();
  return 0;
}

}  // namespace
}  // namespace gpumux::daemon

int main(int argc, char** argv) {
  gpumux::daemon::Options options;
  CLI::App app("gpumuxd: lets several programs share the GPUs of this machine, each within its promise");
  app.add_flag("--foreground", options.foreground, "log to stderr instead of gpumuxd.log");
  app.add_flag("--system", options.system, "serve every user of the machine, in /run/gpumux (root alone)");
  app.add_option("--idle-exit", options.idle_exit_seconds, "leave after so many seconds without a tenant")
      ->check(CLI::Range(0.0, 1e9));
  app.add_flag(
      "--on-demand", options.on_demand,
      "started by a command: leave after 30 s without a tenant, unless the configuration says otherwise");
  app.add_option("--runtime-dir", options.runtime_dir, "where sockets, log and lock live")
      ->check([](const std::string& dir) {
        return dir.starts_with('/') ? std::string() : std::string("must be an absolute path");
      });
  app.set_version_flag("--version", gpumux::daemon::kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return 2;
  }
  return gpumux::daemon::Run(options);
}
