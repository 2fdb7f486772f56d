// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace gpumux::daemon {

// Appends lines to a file of mode 0600. A thread of its own writes, so that a
// full or hanging disk never holds up who appends; the file is turned over at a
// size, so that it never fills a disk. Every member is called by one thread.
class AuditLog {
 public:
  // On disk there are at most this and one line, kOlderFiles + 1 times.
  static constexpr size_t kMaxFileBytes = 4u << 20;
  static constexpr unsigned kOlderFiles = 3;  // FILE.1 is the youngest
  static constexpr size_t kMaxQueuedLines = 4096;

  explicit AuditLog(std::string path, size_t max_file_bytes = kMaxFileBytes);
  // Writes what is queued.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  // Without a line feed. Never blocks for long; what cannot be written is counted.
  void Append(std::string line);

  struct State {
    std::string problem;  // why the last line could not be written; empty: it was
    uint64_t lost = 0;    // lines, since the beginning
  };
  State state() const;

  // The last lines in the file, oldest first: at most `bytes` of them.
  static std::deque<std::string> ReadLast(const std::string& path, size_t bytes);

 private:
  void Run();
  // Empty: written.
  std::string Write(const std::string& line);
  std::string Open();
  void TurnOver();

  const std::string path_;
  const size_t max_file_bytes_;
  UniqueFd file_;  // of the thread alone
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::string> queue_;
  State state_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace gpumux::daemon
