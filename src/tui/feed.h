// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "tui/daemon.h"

namespace gpumux::tui {

// Asks the daemon in a thread of its own, so that a daemon that hangs does not
// keep a key from being answered. The last update alone is kept.
class Feed {
 public:
  // The daemon is the thread's from here on, until this ends.
  Feed(Daemon& daemon, std::chrono::nanoseconds interval);
  // Waits for the call that is under way.
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // Readable when there is something new, until Seen().
  int fd() const { return wake_.get(); }
  void Seen();
  // What is not taken waits: its events go with the next one.
  std::optional<Update> TakeUpdate();
  std::optional<std::string> TakeMessage();
  // Done before the next sample, which comes at once.
  void Do(Action action);

 private:
  void Run();
  void Wake();

  Daemon& daemon_;
  const std::chrono::nanoseconds interval_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Update> update_;
  std::deque<std::string> messages_;
  std::deque<Action> actions_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace gpumux::tui
