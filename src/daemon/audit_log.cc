// SPDX-License-Identifier: Apache-2.0
#include "daemon/audit_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gpumux::daemon {

namespace {

std::string Because(const char* what, const std::string& path) {
  return fmt::format("cannot {} {}: {}", what, path, std::strerror(errno));
}

}  // namespace

AuditLog::AuditLog(std::string path, size_t max_file_bytes)
    : path_(std::move(path)), max_file_bytes_(max_file_bytes) {
  // Signals are the loop's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

AuditLog::~AuditLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void AuditLog::Append(std::string line) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMaxQueuedLines) {
      ++state_.lost;
      state_.problem = path_ + " takes lines more slowly than they come";
      return;
    }
    queue_.push_back(std::move(line));
  }
  wake_.notify_one();
}

AuditLog::State AuditLog::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void AuditLog::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::string line = std::move(queue_.front()) + "\n";
    queue_.pop_front();
    lock.unlock();
    std::string problem = Write(line);
    lock.lock();
    if (!problem.empty()) ++state_.lost;
    state_.problem = std::move(problem);
  }
}

std::string AuditLog::Open() {
  // Not blocking: whoever can put a pipe there could hold the thread for ever.
  file_ = UniqueFd(
      ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file_) return Because("open", path_);
  struct stat stat{};
  if (::fstat(file_.get(), &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == ::geteuid() &&
      ::fchmod(file_.get(), 0600) == 0)
    return {};
  file_.reset();
  return path_ + " is no regular file of this user";
}

void AuditLog::TurnOver() {
  for (unsigned i = kOlderFiles; i > 0; --i) {
    const std::string from = i == 1 ? path_ : fmt::format("{}.{}", path_, i - 1);
    (void)std::rename(from.c_str(), fmt::format("{}.{}", path_, i).c_str());
  }
  file_.reset();
}

std::string AuditLog::Write(const std::string& line) {
  struct stat stat{};
  // Somebody may have removed or moved it.
  struct stat there{};
  if (file_ && (::fstat(file_.get(), &stat) != 0 || ::lstat(path_.c_str(), &there) != 0 ||
                stat.st_ino != there.st_ino || stat.st_dev != there.st_dev))
    file_.reset();
  for (int i = 0; i < 2; ++i) {
    if (!file_) {
      if (std::string problem = Open(); !problem.empty()) return problem;
    }
    if (::fstat(file_.get(), &stat) != 0) return Because("read the size of", path_);
    if (stat.st_size == 0 || static_cast<size_t>(stat.st_size) + line.size() <= max_file_bytes_) break;
    TurnOver();
  }
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return {};
  if (written >= 0) errno = ENOSPC;
  std::string problem = Because("write", path_);
  // Half a line would spoil the next one.
  if (written > 0 && ::ftruncate(file_.get(), stat.st_size) != 0) TurnOver();
  return problem;
}

std::deque<std::string> AuditLog::ReadLast(const std::string& path, size_t bytes) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat stat{};
  if (!file || ::fstat(file.get(), &stat) != 0 || !S_ISREG(stat.st_mode)) return {};
  const off_t from = stat.st_size > static_cast<off_t>(bytes) ? stat.st_size - static_cast<off_t>(bytes) : 0;
  std::string text(bytes, '\0');
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), from);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  // The first one is cut.
  size_t at = from > 0 ? text.find('\n') + 1 : 0;
  if (from > 0 && at == 0) return {};
  std::deque<std::string> lines;
  for (size_t end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(text.substr(at, end - at));
  return lines;
}

}  // namespace gpumux::daemon
