// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace gpumux {
namespace {

// Files of /proc have no size in advance. `limit` bounds what a process can
// make us read (its command line).
Result<std::string> ReadSmallFile(const std::string& path, size_t limit) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    const Code code = (errno == ENOENT || errno == ESRCH) ? Code::kNotFound : Code::kInternal;
    return Fail(code, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  std::string out;
  char buffer[4096];
  while (out.size() < limit) {
    const ssize_t n = ::read(fd.get(), buffer, std::min(sizeof buffer, limit - out.size()));
    if (n < 0 && errno == EINTR) continue;
    // A process that ends while its file is being read gives ESRCH.
    if (n < 0) {
      return Fail(errno == ESRCH ? Code::kNotFound : Code::kInternal,
                  fmt::format("cannot read {}: {}", path, std::strerror(errno)));
    }
    if (n == 0) break;
    out.append(buffer, static_cast<size_t>(n));
  }
  return out;
}

// Strings that end with a NUL each; the last may lack it.
std::vector<std::string> ReadStrings(const std::string& path, size_t limit) {
  std::vector<std::string> strings;
  const auto text = ReadSmallFile(path, limit);
  if (!text) return strings;
  size_t begin = 0;
  while (begin < text->size()) {
    const size_t end = std::min(text->find('\0', begin), text->size());
    strings.push_back(text->substr(begin, end - begin));
    begin = end + 1;
  }
  return strings;
}

template <typename T>
bool ParseNumber(std::string_view text, T& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace

Result<ProcessStat> ParseProcessStat(std::string_view line) {
  const auto malformed = [] { return Fail(Code::kInternal, "a process's stat line is malformed"); };
  // The name is in parentheses and may itself hold spaces and parentheses, so
  // the fields are counted from the last ')'.
  const size_t open = line.find(" (");
  const size_t close = line.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open + 2)
    return malformed();
  ProcessStat stat;
  if (!ParseNumber(line.substr(0, open), stat.pid)) return malformed();
  stat.name = line.substr(open + 2, close - open - 2);
  std::string_view rest = line.substr(close + 1);
  // Field numbers as in proc(5): 3 state, 4 ppid, 22 starttime.
  for (int field = 3; field <= 22; ++field) {
    if (rest.empty() || rest.front() != ' ') return malformed();
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find_first_of(" \n"), rest.size());
    const std::string_view value = rest.substr(0, end);
    rest.remove_prefix(end);
    if (value.empty()) return malformed();
    if (field == 3) stat.state = value[0];
    if (field == 4 && !ParseNumber(value, stat.parent)) return malformed();
    if (field == 22 && !ParseNumber(value, stat.start_time)) return malformed();
  }
  return stat;
}

Result<ProcessStat> ReadProcessStat(pid_t pid, const std::string& proc_root) {
  const auto text = ReadSmallFile(fmt::format("{}/{}/stat", proc_root, pid), 4096);
  if (!text) {
    if (text.error().code == Code::kNotFound) return Fail(Code::kNotFound, fmt::format("no process {}", pid));
    return tl::unexpected(text.error());
  }
  return ParseProcessStat(*text);
}

Result<std::string> ReadProcessStatus(pid_t pid, const std::string& proc_root) {
  return ReadSmallFile(fmt::format("{}/{}/status", proc_root, pid), 16 * 1024);
}

std::vector<std::string> ReadCommandLine(pid_t pid, const std::string& proc_root) {
  return ReadStrings(fmt::format("{}/{}/cmdline", proc_root, pid), 64 * 1024);
}

std::vector<std::string> ReadEnvironment(pid_t pid, const std::string& proc_root) {
  return ReadStrings(fmt::format("{}/{}/environ", proc_root, pid), 256 * 1024);
}

std::vector<pid_t> ListProcesses(const std::string& proc_root) {
  std::vector<pid_t> pids;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(proc_root.c_str()), &::closedir);
  if (!dir) return pids;
  while (const dirent* entry = ::readdir(dir.get())) {
    pid_t pid = 0;
    if (ParseNumber(std::string_view(entry->d_name), pid) && pid > 0) pids.push_back(pid);
  }
  return pids;
}

Result<uid_t> ProcessOwner(pid_t pid, const std::string& proc_root) {
  const auto status = ReadProcessStatus(pid, proc_root);
  if (!status) return tl::unexpected(status.error());
  // A name cannot hold a line's end: the kernel writes it as "\n".
  constexpr std::string_view kKey = "\nUid:\t";
  const size_t at = status->find(kKey);
  const std::string_view rest =
      at == std::string::npos ? std::string_view() : std::string_view(*status).substr(at + kKey.size());
  uid_t real = 0;
  if (!ParseNumber(rest.substr(0, rest.find('\t')), real))
    return Fail(Code::kInternal, fmt::format("the status of process {} names no user", pid));
  return real;
}

Result<UniqueFd> OpenPidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (fd) return fd;
  if (errno == ESRCH) return Fail(Code::kNotFound, fmt::format("no process {}", pid));
  if (errno == ENOSYS)
    return Fail(Code::kUnsupported, "this kernel has no pidfd_open", "gpumux needs Linux 5.3");
  return Fail(Code::kInternal, fmt::format("cannot watch process {}: {}", pid, std::strerror(errno)));
}

Result<std::string> ExecutableDir() {
  char buffer[4096];
  const ssize_t length = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof buffer)) {
    return Fail(Code::kInternal, fmt::format("cannot read /proc/self/exe: {}", std::strerror(errno)));
  }
  const std::string_view path(buffer, static_cast<size_t>(length));
  const size_t slash = path.rfind('/');
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

}  // namespace gpumux
