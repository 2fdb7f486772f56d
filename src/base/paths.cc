// SPDX-License-Identifier: Apache-2.0
#include "base/paths.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/unique_fd.h"

namespace gpumux {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

RuntimePaths PathsIn(const std::string& dir) {
  return {.dir = dir,
          .session_socket = dir + "/session.sock",
          .api_socket = dir + "/api.sock",
          .log = dir + "/gpumuxd.log",
          .store = dir + "/leases.db",
          .audit = dir + "/audit.log",
          .keeper_socket = dir + "/keeper.sock",
          .history = dir + "/history.db",
          .lock = dir + "/gpumuxd.lock"};
}

RuntimePaths MachinePaths() {
  RuntimePaths paths = PathsIn("/run/gpumux");
  paths.history = "/var/lib/gpumux/history.db";
  return paths;
}

namespace {

// `denied`: bits of the mode that a folder which was there already may not have.
Status EnsureDir(const std::string& path, mode_t mode, mode_t denied) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return Fail(Code::kUnavailable,
                fmt::format("cannot create the folder {}: {}", path, std::strerror(errno)),
                "set GPUMUX_RUNTIME_DIR to a folder of your own");
  }
  // Opened and then looked at, so that nobody can change what the path means
  // between the check and the use of the check.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info{};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    const bool link = errno == ELOOP || errno == ENOTDIR;
    return Fail(Code::kDenied,
                link ? fmt::format("{} is not a folder or is a symbolic link", path)
                     : fmt::format("cannot open the folder {}: {}", path, std::strerror(errno)),
                "remove it, or set GPUMUX_RUNTIME_DIR to a folder of your own");
  }
  if (info.st_uid != ::geteuid()) {
    return Fail(Code::kDenied, fmt::format("the folder {} belongs to uid {}, not to you", path, info.st_uid),
                "remove it, or set GPUMUX_RUNTIME_DIR to a folder of your own");
  }
  if ((info.st_mode & denied) != 0) {
    return Fail(Code::kDenied,
                fmt::format("others may {} the folder {} (mode {:04o})",
                            (denied & 0055) != 0 ? "enter" : "write to", path, info.st_mode & 07777),
                fmt::format("chmod {:o} {}", mode, path));
  }
  return {};
}

}  // namespace

Status EnsurePrivateDir(const std::string& path) { return EnsureDir(path, 0700, 0077); }
Status EnsureMachineDir(const std::string& path) { return EnsureDir(path, 0755, 0022); }

Result<std::string> RuntimeDirName() {
  std::string dir = Environment("GPUMUX_RUNTIME_DIR");
  if (dir.empty()) {
    const std::string xdg = Environment("XDG_RUNTIME_DIR");
    struct stat info{};
    // A login that is over leaves the variable behind (su, cron): fall back.
    const bool usable = !xdg.empty() && xdg[0] == '/' && ::stat(xdg.c_str(), &info) == 0 &&
                        S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
    dir = usable ? xdg + "/gpumux" : fmt::format("/tmp/gpumux-{}", ::geteuid());
  } else if (dir[0] != '/') {
    return Fail(Code::kInvalid,
                fmt::format("GPUMUX_RUNTIME_DIR is '{}', which is not an absolute path", dir));
  }
  while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
  return dir;
}

Result<std::string> FindRuntimeDir() {
  auto dir = RuntimeDirName();
  if (!dir) return dir;
  if (const Status made = EnsurePrivateDir(*dir); !made) return tl::unexpected(made.error());
  return dir;
}

namespace {

// The user's folder for what stays; empty: there is none. Not another user's, whose HOME was left in the
// environment.
std::string StateDirName() {
  std::string dir = Environment("XDG_STATE_HOME");
  const std::string home = Environment("HOME");
  struct stat info{};
  const bool own =
      !home.empty() && home[0] == '/' && ::stat(home.c_str(), &info) == 0 && info.st_uid == ::geteuid();
  if (dir.empty() || dir[0] != '/') {
    if (!own) return "";
    dir = home + "/.local/state";
  }
  return dir + "/gpumux";
}

// A home may be that of several machines.
std::string HostName() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return "local";
  std::string host;
  for (const char* c = name; *c; ++c) {
    const bool plain =
        (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '-';
    host += plain ? *c : '_';
  }
  return host.empty() ? "local" : host;
}

}  // namespace

Result<RuntimePaths> FindRuntimePaths(bool simulated) {
  auto dir = FindRuntimeDir();
  if (!dir) return tl::unexpected(dir.error());
  if (simulated) {
    *dir += "/sim";
    if (const Status made = EnsurePrivateDir(*dir); !made) return tl::unexpected(made.error());
  }
  RuntimePaths paths = PathsIn(*dir);
  if (const std::string state = StateDirName(); !state.empty() && Environment("GPUMUX_RUNTIME_DIR").empty())
    paths.history = fmt::format("{}/history-{}{}.db", state, HostName(), simulated ? "-sim" : "");
  return paths;
}

Status EnsureHistoryDir(const RuntimePaths& paths) {
  const std::string dir = paths.history.substr(0, paths.history.rfind('/'));
  if (dir == paths.dir) return {};
  // What is above it: .local and state, where nothing has used them yet.
  for (size_t at = 1; (at = dir.find('/', at)) != std::string::npos; ++at)
    ::mkdir(dir.substr(0, at).c_str(), 0700);
  return EnsurePrivateDir(dir);
}

}  // namespace gpumux
