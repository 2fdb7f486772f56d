// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/log_file.h"

namespace gpumux {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<int> g_fd{STDERR_FILENO};

std::string g_path;  // of SetLogFile, by one thread

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};

}  // namespace

void SetLogLevel(LogLevel level) { g_level = level; }
bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

Result<LogLevel> ParseLogLevel(std::string_view text) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == text) return static_cast<LogLevel>(i);
  }
  return Fail(Code::kInvalid, fmt::format("'{}' is not a log level", text.substr(0, 40)),
              "levels are debug, info, warning and error");
}

Status SetLogFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0)
    return Fail(Code::kUnavailable, fmt::format("cannot open the log {}: {}", path, std::strerror(errno)));
  const int old = g_fd.exchange(fd);
  if (old != STDERR_FILENO) ::close(old);
  g_path = path;
  return {};
}

void FollowLogFile() {
  struct stat there{}, ours{};
  if (g_path.empty() || ::fstat(g_fd.load(), &ours) != 0) return;
  const bool same =
      ::lstat(g_path.c_str(), &there) == 0 && there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
  if (!same) (void)SetLogFile(std::string(g_path));
}

void WriteLog(LogLevel level, std::string_view text) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  char date[32], zone[8];
  ::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &local);
  ::strftime(zone, sizeof zone, "%z", &local);
  std::string line =
      fmt::format("{}.{:03}{}:{} {:<7} ", date, now.tv_nsec / 1'000'000, std::string_view(zone, 3),
                  std::string_view(zone + 3), kNames[static_cast<size_t>(level)]);
  for (char c : text) line += (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? '?' : c;
  line += '\n';
  // One write: lines of several threads and of a daemon that takes over do not mix.
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(g_fd.load(), line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a full disk must not stop the daemon
    done += static_cast<size_t>(n);
  }
}

}  // namespace gpumux
