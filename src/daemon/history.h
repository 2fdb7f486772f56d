// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "daemon/api_server.h"
#include "daemon/event_loop.h"
#include "history/store.h"

namespace gpumux::daemon {

// Past tenants: kept, and told to who asks (GET /v1/history). A thread of its own works on the file, so that
// no decision waits for a disk. What it could not write yet stays in the leases' store (Store::Finish), for
// this daemon and the next.
class History {
 public:
  static constexpr size_t kMostQueued = 4096;
  static constexpr size_t kMostSamples = 60;  // moments
  static constexpr size_t kMostAsked = 64;

  struct Settings {
    std::string path;
    std::chrono::seconds keep = std::chrono::hours(24 * 365);
    bool simulated = false;
  };

  History(EventLoop& loop, const Clock& clock, Settings settings);
  // Writes what is queued, as far as the disk takes it.
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // From the loop: this record is in the file.
  std::function<void(const std::string& id)> on_kept;
  // From the loop: there is room for records that did not fit before.
  std::function<void()> on_room;

  // `record`: HistoryRecord(). Never blocks for long.
  void Add(std::string id, std::string record);
  // Of all GPUs, at one moment.
  void Add(std::vector<history::GpuSample> samples);
  // GET /v1/history and /v1/history/gpus.
  void Handle(const ApiServer::Request& request, ApiServer::Reply reply);
  static bool Takes(const std::string& path) { return path == "/v1/history" || path == "/v1/history/gpus"; }

 private:
  struct Asked {
    std::variant<history::Query, history::GpuQuery> query;
    uid_t viewer = 0;
    ApiServer::Reply reply;
  };

  void Run();
  // With the mutex taken: the next thing to do is done without it.
  void Write(std::unique_lock<std::mutex>& lock);
  void WriteSamples(std::unique_lock<std::mutex>& lock);
  void Answer(std::unique_lock<std::mutex>& lock);
  ApiServer::Response Look(const Asked& asked);
  void PruneNow(std::unique_lock<std::mutex>& lock);
  std::string Body(const history::Answer& answer, uid_t viewer) const;
  // From the thread, with the mutex taken: `what` is done by the loop.
  void Tell(std::function<void()> what);
  void DoTold();

  EventLoop& loop_;
  const Clock& clock_;
  const Settings settings_;
  history::Store store_;  // of the thread alone
  std::string said_;      // of the thread: why it cannot be written, as it was said
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<std::string, std::string>> queue_;
  std::deque<std::vector<history::GpuSample>> samples_;
  std::deque<Asked> asked_;
  std::vector<std::function<void()>> told_;
  bool stop_ = false;
  bool failing_ = false;  // until retry_at_
  bool dropped_ = false;  // records that did not fit, and wait in the leases' store
  std::chrono::steady_clock::time_point retry_at_{};
  std::chrono::steady_clock::time_point prune_at_{};
  UniqueFd told_fd_;  // eventfd: there is something in told_
  EventLoop::Watch told_watch_;
  std::thread thread_;
};

}  // namespace gpumux::daemon
