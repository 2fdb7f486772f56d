// SPDX-License-Identifier: Apache-2.0
#include "softgpu/client/start_server.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

extern char** environ;

namespace gpumux::softgpu {

namespace {

std::string ProgramPath() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&StartServer), &info) == 0 || info.dli_fname == nullptr) return {};
  char* real = realpath(info.dli_fname, nullptr);
  if (real == nullptr) return {};
  std::string dir(real);
  free(real);
  // Beside the libraries; programs that ask for it lie in a folder below.
  for (int up = 0; up < 2; ++up) {
    dir.resize(dir.rfind('/'));
    const std::string path = dir + "/" + kServerProgram;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

// The directory and its parents down from an existing one, for us alone; a
// directory that is there stays as its owner made it.
bool MakeDirectories(const std::string& dir) {
  for (size_t at = 1; at != std::string::npos;) {
    at = dir.find('/', at);
    const std::string part = dir.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST && errno != EACCES && errno != EROFS) return false;
    if (at != std::string::npos) ++at;
  }
  struct stat st;
  return stat(dir.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

bool Listens(const std::string& dir) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = dir + "/" + kSocketName;
  if (path.size() >= sizeof(address.sun_path)) return false;
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool up = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return up;
}

// A variable that must not reach the server: it outlives the tenant that
// happened to start it and is no part of any.
bool Scrubbed(const char* entry) {
  for (const char* name :
       {"LD_PRELOAD=", "LD_LIBRARY_PATH=", "LD_AUDIT=", "GPUMUX_", "CUDA_VISIBLE_DEVICES=", "CUDA_MPS_"}) {
    if (strncmp(entry, name, strlen(name)) == 0) return true;
  }
  return false;
}

}  // namespace

Start StartServer(const Location& location) {
  const std::string program = ProgramPath();
  if (program.empty() || !MakeDirectories(location.dir)) return Start::kRefused;

  const std::string lock_path = location.dir + "/" + kStartLockName;
  // First without O_CREAT: in a sticky directory another user's file may be
  // opened but not "created".
  int lock = open(lock_path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0 && errno == ENOENT) {
    lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock >= 0) fchmod(lock, 0666);  // another user may be the next to start it
  }
  if (lock < 0) return Start::kRefused;
  int rc;
  do {
    rc = flock(lock, LOCK_EX);
  } while (rc != 0 && errno == EINTR);
  Start result = rc == 0 && Listens(location.dir) ? Start::kListens : Start::kFailed;
  if (rc == 0 && result != Start::kListens) {
    std::vector<char*> env;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!Scrubbed(*entry)) env.push_back(*entry);
    }
    env.push_back(nullptr);
    char* const argv[] = {const_cast<char*>(program.c_str()), const_cast<char*>(location.dir.c_str()),
                          const_cast<char*>(location.spec.c_str()), nullptr};
    // System calls, not the C library's: a preloaded library that wraps fork
    // and exec (to keep itself loaded) has no business in the server, and fork
    // handlers of the program must not run for a process that only execs.
    const long child = syscall(SYS_fork);
    if (child == 0) {
      sigset_t none;
      sigemptyset(&none);
      syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, 8);
      syscall(SYS_execve, program.c_str(), argv, env.data());
      syscall(SYS_exit_group, 127);
    }
    if (child > 0) {
      // It ends when the server listens. A program that reaps all its children
      // may take this one too (ECHILD): then only trying tells.
      int status = 0;
      pid_t got;
      do {
        got = waitpid(static_cast<pid_t>(child), &status, 0);
      } while (got < 0 && errno == EINTR);
      constexpr int kUsage = 2, kNoProgram = 127;
      const int code = got == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      if (got != child || code == 0) {
        result = Start::kListens;
      } else if (code == kUsage || code == kNoProgram) {
        result = Start::kRefused;
      }
    }
  }
  close(lock);
  return result;
}

}  // namespace gpumux::softgpu
