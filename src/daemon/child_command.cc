// SPDX-License-Identifier: Apache-2.0
#include "daemon/child_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/process.h"

namespace gpumux::daemon {

namespace {

constexpr size_t kMaxOutput = 64 << 10;

tl::unexpected<Error> Cannot(const std::string& what, int error) {
  return Fail(Code::kUnavailable, fmt::format("cannot {}: {}", what, std::strerror(error)));
}

// What the program reads: a file in memory, so that nobody has to wait for its reading.
Result<UniqueFd> InputOf(const std::string& text) {
  UniqueFd file(::memfd_create("gpumux-command", MFD_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::lseek(file.get(), 0, SEEK_SET) != 0)
    return Cannot("make a file in memory", errno);
  return file;
}

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) out.push_back(const_cast<char*>(word.c_str()));
  out.push_back(nullptr);
  return out;
}

// Started with no signal blocked or ignored, and in a session of its own: a
// Ctrl-C at the daemon's terminal is not meant for it.
int Spawn(const ChildCommand::Spec& spec, int input, int output, pid_t* pid) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, output, STDERR_FILENO);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  // Its files are as if a shell had started it, whatever the daemon's own are to be.
  const mode_t mask = ::umask(022);
  const int error = ::posix_spawn(pid, spec.argv[0].c_str(), &files, &attributes, Pointers(spec.argv).data(),
                                  Pointers(spec.env).data());
  ::umask(mask);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

Result<std::unique_ptr<ChildCommand>> ChildCommand::Start(EventLoop& loop, const Spec& spec, Done done) {
  auto input = InputOf(spec.input);
  if (!input) return tl::unexpected(input.error());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Cannot("make a pipe", errno);
  UniqueFd output(ends[0]), child_output(ends[1]);
  ::fcntl(output.get(), F_SETFL, O_NONBLOCK);
  std::unique_ptr<ChildCommand> command(new ChildCommand(loop, std::move(done)));
  if (const int error = Spawn(spec, input->get(), child_output.get(), &command->pid_); error != 0)
    return Cannot("start " + spec.argv[0], error);
  auto pidfd = OpenPidfd(command->pid_);
  if (!pidfd) return tl::unexpected(pidfd.error());
  command->pidfd_ = std::move(*pidfd);
  command->output_ = std::move(output);
  ChildCommand* self = command.get();
  command->death_ = loop.OnReadable(self->pidfd_.get(), [self] { self->Ended(); });
  command->readable_ = loop.OnReadable(self->output_.get(), [self] { self->Read(); });
  command->deadline_ = loop.After(spec.limit, [self] {
    self->outcome_.timed_out = true;
    ::kill(self->pid_, SIGKILL);
  });
  return command;
}

ChildCommand::~ChildCommand() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildCommand::Read() {
  char bytes[4096];
  for (;;) {
    const ssize_t got = ::read(output_.get(), bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    // Nobody can write any more: else the loop would call for ever.
    if (got == 0) readable_ = {};
    if (got <= 0) return;
    outcome_.output.append(bytes,
                           std::min<size_t>(static_cast<size_t>(got), kMaxOutput - outcome_.output.size()));
  }
}

// A daemon that it started may have the pipe for as long as it lives: what is
// there when the program ends is all.
void ChildCommand::Ended() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return;
  pid_ = 0;
  Read();
  death_ = {};
  readable_ = {};
  deadline_ = {};
  outcome_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  // It may destroy this object.
  const Done done = std::move(done_);
  const Outcome outcome = std::move(outcome_);
  done(outcome);
}

}  // namespace gpumux::daemon
