// SPDX-License-Identifier: Apache-2.0
#include "cli/daemon_start.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "base/unique_fd.h"
#include "cli/terminal.h"
#include "gpumux/abi/session.h"
#include "ipc/seqpacket.h"

namespace gpumux::cli {
namespace {

using Steady = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kLook = std::chrono::milliseconds(10);

bool Accepts(const RuntimePaths& paths) {
  return ipc::ConnectUnix(paths.session_socket, SOCK_SEQPACKET).has_value();
}

// What the daemon said last, for a message about its end.
std::string LastLogLine(const std::string& path) {
  std::ifstream log(path);
  std::string line, last;
  while (std::getline(log, line)) {
    if (!line.empty()) last = line;
  }
  return Plain(last, 300);
}

// Ours without what makes a process a tenant's: a `run` inside of a tenant
// starts a daemon that is no part of it.
std::vector<char*> DaemonEnvironment() {
  std::vector<char*> out;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name != GPUMUX_ENV_SESSION && name != GPUMUX_ENV_TENANT && name != GPUMUX_ENV_STRICT)
      out.push_back(*entry);
  }
  out.push_back(nullptr);
  return out;
}

// In the child of a fork: only async-signal-safe calls.
[[noreturn]] void BecomeDaemon(const char* program, char* const* environment, int log_fd) {
  ::setsid();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD, SIGTSTP, SIGTTIN, SIGTTOU})
    ::signal(signal, SIG_DFL);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDIN_FILENO);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(log_fd >= 0 ? log_fd : null, STDERR_FILENO);
  ::syscall(SYS_close_range, 3u, ~0u, 0u);
  // The folder it was started in may be unmounted one day.
  if (::chdir("/") != 0) ::_exit(127);
  const char* const arguments[] = {"gpumuxd", "--on-demand", nullptr};
  // Not by the C library's name: a tenant's program that starts the daemon has
  // the guard in front of it, which would make the daemon a part of the tenant.
  ::syscall(SYS_execve, program, arguments, environment);
  ::_exit(127);
}

// Forks twice, so that the daemon is no child of `run` and never becomes a part
// of its tenant. Gives the daemon's pid.
Result<pid_t> Spawn(const std::string& program, const RuntimePaths& paths) {
  const UniqueFd log(::open(paths.log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  const std::vector<char*> environment = DaemonEnvironment();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Fail(Code::kInternal, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t middle = ::fork();
  if (middle < 0) return Fail(Code::kInternal, fmt::format("cannot fork: {}", std::strerror(errno)));
  if (middle == 0) {
    const pid_t daemon = ::fork();
    if (daemon == 0) BecomeDaemon(program.c_str(), environment.data(), log.get());
    const ssize_t written = ::write(write_end.get(), &daemon, sizeof daemon);
    ::_exit(daemon > 0 && written == sizeof daemon ? 0 : 1);
  }
  write_end.reset();
  pid_t daemon = -1;
  ssize_t n;
  do {
    n = ::read(read_end.get(), &daemon, sizeof daemon);
  } while (n < 0 && errno == EINTR);
  while (::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (n != sizeof daemon || daemon <= 0) return Fail(Code::kInternal, "cannot fork the daemon");
  return daemon;
}

}  // namespace

Status StartUserDaemon(const RuntimePaths& paths) {
  const auto deadline = Steady::now() + kPatience;
  const UniqueFd lock(
      ::open((paths.dir + "/start.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock)
    return Fail(Code::kUnavailable, fmt::format("cannot write to {}: {}", paths.dir, std::strerror(errno)));
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return Fail(Code::kUnavailable, fmt::format("cannot lock {}: {}", paths.dir, std::strerror(errno)));
    if (Accepts(paths)) return {};
    if (Steady::now() > deadline)
      return Fail(Code::kUnavailable, "another gpumux run has been starting the daemon for 10 s",
                  fmt::format("see {}", paths.log));
    ::poll(nullptr, 0, static_cast<int>(kLook.count()));
  }
  if (Accepts(paths)) return {};

  const auto folder = ExecutableDir();
  if (!folder) return tl::unexpected(folder.error());
  const std::string program = *folder + "/gpumuxd";
  if (::access(program.c_str(), X_OK) != 0) {
    return Fail(Code::kUnavailable,
                fmt::format("no daemon runs, and {} cannot be started: {}", program, std::strerror(errno)));
  }
  const auto daemon = Spawn(program, paths);
  if (!daemon) return tl::unexpected(daemon.error());
  const auto pidfd = OpenPidfd(*daemon);
  while (Steady::now() < deadline) {
    if (Accepts(paths)) return {};
    pollfd death{pidfd ? pidfd->get() : -1, POLLIN, 0};
    const bool dead = ::poll(&death, 1, static_cast<int>(kLook.count())) == 1 ||
                      (!pidfd && pidfd.error().code == Code::kNotFound);
    // It may have ended because another one was there first.
    if (dead && Accepts(paths)) return {};
    if (dead) {
      const std::string last = LastLogLine(paths.log);
      return Fail(Code::kUnavailable,
                  fmt::format("the daemon ended at once{}{}", last.empty() ? "" : ": ", last),
                  fmt::format("see {}", paths.log));
    }
  }
  return Fail(Code::kUnavailable, "the daemon does not answer after 10 s", fmt::format("see {}", paths.log));
}

Result<ApiClient> ConnectOrStart(const Endpoints& endpoints) {
  auto client = ApiClient::Connect(endpoints);
  if (client || client.error().code != Code::kUnavailable) return client;
  if (Status started = StartUserDaemon(endpoints.own); !started) return tl::unexpected(started.error());
  return ApiClient::Connect(endpoints);
}

}  // namespace gpumux::cli
