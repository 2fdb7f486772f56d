// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>

namespace gpumux::daemon {

// The daemon's one thread: calls back when a descriptor is readable, when time
// has passed, when a signal came. Everything else of the daemon runs inside
// these callbacks, so nothing needs a lock. Keeps Boost.Asio out of headers.
class EventLoop {
 public:
  struct Impl;

  // Calls back until it is destroyed or assigned over, which its own callback
  // may do.
  class Watch {
   public:
    Watch() = default;
    Watch(Watch&&) noexcept = default;
    Watch& operator=(Watch&& other) noexcept;
    ~Watch();
    explicit operator bool() const { return state_ != nullptr; }

   private:
    friend class EventLoop;
    struct State;
    explicit Watch(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };

  EventLoop();
  ~EventLoop();

  // Until Stop(); also again.
  void Run();
  void Stop();

  // Level-triggered: as long as `fd` is readable (or hung up). The descriptor
  // stays the caller's, who destroys the watch before closing it.
  Watch OnReadable(int fd, std::function<void()> callback);
  Watch After(std::chrono::nanoseconds delay, std::function<void()> callback);
  Watch Every(std::chrono::nanoseconds period, std::function<void()> callback);
  Watch OnSignals(std::initializer_list<int> signals, std::function<void(int)> callback);
  // Soon, from the loop, after the present callback has returned.
  void Post(std::function<void()> callback);

  // For the HTTP server, which speaks Asio itself (event_loop_asio.h).
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumux::daemon
