// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop.h"

#include <poll.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "daemon/event_loop_asio.h"

namespace gpumux::daemon {

namespace asio = boost::asio;

// Handlers in flight hold a reference, so a callback may destroy its own watch.
struct EventLoop::Watch::State : std::enable_shared_from_this<State> {
  virtual ~State() = default;
  virtual void Cancel() = 0;
  bool active = true;
};

EventLoop::Watch& EventLoop::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    Watch old(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

EventLoop::Watch::~Watch() {
  if (!state_) return;
  state_->active = false;
  state_->Cancel();
}

namespace {

template <typename State>
std::shared_ptr<State> Self(State* state) {
  return std::static_pointer_cast<State>(state->shared_from_this());
}

}  // namespace

namespace states {

template <typename Base>
struct Readable final : Base {
  Readable(asio::io_context& context, int fd, std::function<void()> call)
      : descriptor(context, fd), callback(std::move(call)) {}
  // The descriptor is the caller's: only let go of it.
  void Cancel() override {
    if (descriptor.is_open()) descriptor.release();
  }
  void Arm() {
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = Self(this)](const boost::system::error_code& error) {
                            if (error || !self->active) return;
                            if (self->IsReadable()) self->callback();
                            if (self->active) self->Arm();
                          });
  }
  // The event may be one that was on its way to another descriptor, whose place in the reactor this one
  // has got since: of a process's end nobody may be told before it has ended.
  bool IsReadable() {
    pollfd now{descriptor.native_handle(), POLLIN, 0};
    return ::poll(&now, 1, 0) == 1;
  }
  asio::posix::stream_descriptor descriptor;
  std::function<void()> callback;
};

template <typename Base>
struct Timer final : Base {
  Timer(asio::io_context& context, std::chrono::nanoseconds p, bool r, std::function<void()> call)
      : timer(context), period(p), repeat(r), callback(std::move(call)) {}
  void Cancel() override { timer.cancel(); }
  void Arm() {
    timer.expires_after(period);
    timer.async_wait([self = Self(this)](const boost::system::error_code& error) {
      if (error || !self->active) return;
      self->callback();
      if (self->active && self->repeat) self->Arm();
    });
  }
  asio::steady_timer timer;
  std::chrono::nanoseconds period;
  bool repeat;
  std::function<void()> callback;
};

template <typename Base>
struct Signals final : Base {
  Signals(asio::io_context& context, std::function<void(int)> call)
      : set(context), callback(std::move(call)) {}
  void Cancel() override { set.cancel(); }
  void Arm() {
    set.async_wait([self = Self(this)](const boost::system::error_code& error, int signal) {
      if (error || !self->active) return;
      self->callback(signal);
      if (self->active) self->Arm();
    });
  }
  asio::signal_set set;
  std::function<void(int)> callback;
};

}  // namespace states

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::Run() {
  const auto work = asio::make_work_guard(impl_->context);
  impl_->context.run();
  impl_->context.restart();  // for the next time
}

void EventLoop::Stop() { impl_->context.stop(); }

EventLoop::Watch EventLoop::OnReadable(int fd, std::function<void()> callback) {
  auto state = std::make_shared<states::Readable<Watch::State>>(impl_->context, fd, std::move(callback));
  state->Arm();
  return Watch(std::move(state));
}

EventLoop::Watch EventLoop::After(std::chrono::nanoseconds delay, std::function<void()> callback) {
  auto state =
      std::make_shared<states::Timer<Watch::State>>(impl_->context, delay, false, std::move(callback));
  state->Arm();
  return Watch(std::move(state));
}

EventLoop::Watch EventLoop::Every(std::chrono::nanoseconds period, std::function<void()> callback) {
  auto state =
      std::make_shared<states::Timer<Watch::State>>(impl_->context, period, true, std::move(callback));
  state->Arm();
  return Watch(std::move(state));
}

EventLoop::Watch EventLoop::OnSignals(std::initializer_list<int> signals, std::function<void(int)> callback) {
  auto state = std::make_shared<states::Signals<Watch::State>>(impl_->context, std::move(callback));
  for (const int signal : signals) state->set.add(signal);
  state->Arm();
  return Watch(std::move(state));
}

void EventLoop::Post(std::function<void()> callback) { asio::post(impl_->context, std::move(callback)); }

}  // namespace gpumux::daemon
