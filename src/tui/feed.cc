// SPDX-License-Identifier: Apache-2.0
#include "tui/feed.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace gpumux::tui {
namespace {

// Events of an update that nobody took would be lost with it.
EventsSample Joined(EventsSample before, std::optional<EventsSample>& after) {
  if (!after) return before;
  before.next_after = after->next_after;
  for (EventSample& event : after->events) before.events.push_back(std::move(event));
  if (const size_t count = before.events.size(); count > Model::kMostEvents)
    before.events.erase(before.events.begin(),
                        before.events.begin() + static_cast<ptrdiff_t>(count - Model::kMostEvents));
  return before;
}

}  // namespace

Feed::Feed(Daemon& daemon, std::chrono::nanoseconds interval)
    : daemon_(daemon), interval_(interval), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  // Signals are for the thread that has the terminal.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Feed::~Feed() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Feed::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
}

void Feed::Seen() {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
}

std::optional<Update> Feed::TakeUpdate() {
  const std::lock_guard lock(mutex_);
  return std::exchange(update_, std::nullopt);
}

std::optional<std::string> Feed::TakeMessage() {
  const std::lock_guard lock(mutex_);
  if (messages_.empty()) return std::nullopt;
  std::string message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

void Feed::Do(Action action) {
  {
    const std::lock_guard lock(mutex_);
    actions_.push_back(std::move(action));
  }
  changed_.notify_one();
}

void Feed::Run() {
  uint64_t events_after = 0;
  auto next = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!over_) {
    while (!actions_.empty()) {
      const Action action = std::move(actions_.front());
      actions_.pop_front();
      lock.unlock();
      std::string message = CarryOut(daemon_, action);
      lock.lock();
      messages_.push_back(std::move(message));
    }
    lock.unlock();
    Update update = Gather(daemon_, events_after);
    if (update.events) events_after = update.events->next_after;
    lock.lock();
    if (update_ && update_->events) update.events = Joined(std::move(*update_->events), update.events);
    update_ = std::move(update);
    Wake();
    // From when it should have been, unless that is long past.
    next = std::max(next + interval_, std::chrono::steady_clock::now());
    changed_.wait_until(lock, next, [this] { return over_ || !actions_.empty(); });
  }
}

}  // namespace gpumux::tui
