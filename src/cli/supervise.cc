// SPDX-License-Identifier: Apache-2.0
#include "cli/supervise.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpumux::cli {
namespace {

constexpr int kTickMs = 250;
constexpr int kWatched[] = {SIGINT,  SIGQUIT, SIGTERM,  SIGHUP,  SIGUSR1,
                            SIGUSR2, SIGCONT, SIGWINCH, SIGTSTP, SIGCHLD};

tl::unexpected<Error> SystemError(const char* what) {
  return Fail(Code::kInternal, fmt::format("{}: {}", what, std::strerror(errno)));
}

// We are in the terminal's foreground, so a stop means that the person wants
// the shell back.
bool InForeground() {
  const UniqueFd tty(::open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY));
  return tty && ::tcgetpgrp(tty.get()) == ::getpgrp();
}

// What the terminal sends goes to the whole foreground group: the program has
// it already. What a process sent is for `run`, and is passed on.
bool FromTerminal(const signalfd_siginfo& info) { return info.ssi_code == SI_KERNEL; }

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

Result<Signals> Signals::Block() {
  Signals signals;
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kWatched) sigaddset(&set, signal);
  if (::sigprocmask(SIG_BLOCK, &set, &signals.before_) != 0) return SystemError("cannot block signals");
  signals.fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_) return SystemError("cannot make a signalfd");
  return signals;
}

void Program::Forward(int signal, bool from_terminal) const {
  if (group_ == Group::kOwn) {
    ::kill(-pid_, signal);
    return;
  }
  switch (signal) {
    case SIGINT:
    case SIGQUIT:
    case SIGTSTP:
      // Of a stop: the program may do so or not; we follow it (see WIFSTOPPED).
      if (!from_terminal) ::kill(pid_, signal);
      break;
    default:
      ::kill(pid_, signal);
  }
}

Result<Program> Program::Prepare(const std::string& path, const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment, const Signals& signals,
                                 Group group) {
  // Descendants whose parent ends stay ours: the daemon finds them below us.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return SystemError("cannot become a subreaper");
  int go[2], error[2];
  if (::pipe2(go, O_CLOEXEC) != 0) return SystemError("cannot make a pipe");
  UniqueFd go_read(go[0]), go_write(go[1]);
  if (::pipe2(error, O_CLOEXEC) != 0) return SystemError("cannot make a pipe");
  UniqueFd error_read(error[0]), error_write(error[1]);
  const std::vector<char*> argv = Pointers(arguments), envp = Pointers(environment);

  Program program;
  program.group_ = group;
  program.pid_ = ::fork();
  if (program.pid_ < 0) return SystemError("cannot fork");
  if (program.pid_ == 0) {
    go_write.reset();
    // It is killed with `run`: whoever killed all of run's group meant it, too. A `run`
    // that is dead by now never lets it go.
    if (group == Group::kOwn) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    char byte;
    // One byte: go. The end without one: `run` has died, and so do we.
    ssize_t n;
    do {
      n = ::read(go_read.get(), &byte, 1);
    } while (n < 0 && errno == EINTR);
    if (n != 1) ::_exit(125);
    ::sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
    ::execve(path.c_str(), argv.data(), envp.data());
    // As execvp: a file without an interpreter line is a shell script.
    if (errno == ENOEXEC) {
      std::vector<char*> shell = {const_cast<char*>("/bin/sh"), const_cast<char*>(path.c_str())};
      shell.insert(shell.end(), argv.begin() + 1, argv.end());
      ::execve("/bin/sh", shell.data(), envp.data());
    }
    const int failed = errno;
    const ssize_t written = ::write(error_write.get(), &failed, sizeof failed);
    ::_exit(written > 0 && failed == ENOENT ? 127 : 126);
  }
  // On both sides: whichever comes first.
  if (group == Group::kOwn) ::setpgid(program.pid_, program.pid_);
  program.go_ = std::move(go_write);
  program.error_ = std::move(error_read);
  return program;
}

Status Program::Go() {
  const char byte = 1;
  const ssize_t written = ::write(go_.get(), &byte, 1);
  go_.reset();
  int failed = 0;
  ssize_t n = 0;
  if (written == 1) {
    do {
      n = ::read(error_.get(), &failed, sizeof failed);
    } while (n < 0 && errno == EINTR);
  }
  error_.reset();
  if (n <= 0) return {};  // the pipe closed with the exec
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  return Fail(failed == ENOENT ? Code::kNoCommand : Code::kNotExecutable, std::strerror(failed));
}

ProgramEnd Program::Wait(const Signals& signals, Companion& companion) {
  std::optional<ProgramEnd> end;
  const auto reap = [&] {
    int status = 0;
    // -1: also descendants that were left to us.
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      if (pid != pid_) continue;
      if (WIFEXITED(status)) end = ProgramEnd{.exit_code = WEXITSTATUS(status), .signal = std::nullopt};
      if (WIFSIGNALED(status)) end = ProgramEnd{.exit_code = std::nullopt, .signal = WTERMSIG(status)};
      if (WIFSTOPPED(status)) {
        const int stop = WSTOPSIG(status);
        const bool by_terminal = stop == SIGTSTP || stop == SIGTTIN || stop == SIGTTOU;
        if (by_terminal && InForeground()) ::raise(SIGSTOP);
      }
    }
  };
  reap();
  while (!end) {
    const bool alone = companion.fd() < 0;
    pollfd entries[] = {{signals.fd(), POLLIN, 0}, {companion.fd(), POLLIN, 0}};
    if (::poll(entries, 2, alone ? kTickMs : -1) < 0) continue;  // EINTR
    signalfd_siginfo info;
    while (::read(signals.fd(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) {
        reap();
      } else if (!end) {
        Forward(static_cast<int>(info.ssi_signo), FromTerminal(info));
      }
    }
    if (end) break;
    if (alone) companion.OnTick();
    if (!alone && entries[1].revents != 0) companion.OnReadable();
  }
  return *end;
}

}  // namespace gpumux::cli
