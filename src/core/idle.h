// SPDX-License-Identifier: Apache-2.0
//
// A tenant that holds memory and launches nothing is idle. How long it has been,
// and when something is done about it: pure, time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace gpumux::core {

enum class IdleAction {
  kOff,
  kNotify,   // an event
  kReclaim,  // and its processes are asked for memory that they only cache
};

struct IdlePolicy {
  IdleAction action = IdleAction::kOff;
  std::chrono::nanoseconds after = std::chrono::minutes(10);
};

// The present stretch without a launch of one tenant, by looks at its count of
// launches. It begins at the look that last found another count, so that it is
// shorter than the truth by the time between two looks at most.
class IdleStretch {
 public:
  IdleStretch() = default;
  // `before`: the stretches that somebody else saw.
  explicit IdleStretch(std::chrono::nanoseconds before) : total_(before) {}

  void Look(std::chrono::nanoseconds now, uint64_t launches) {
    if (!since_ || launches != launches_) {
      Begin(now, launches);
    } else {
      total_ += now - last_look_;
    }
    last_look_ = now;
  }
  // It holds no memory, or nobody counts its launches.
  void End() {
    since_.reset();
    over_ |= due_;
    due_ = false;
  }

  // Up to the last look. Nullopt: there is none.
  std::optional<std::chrono::nanoseconds> Lasted() const {
    return since_ ? std::optional(last_look_ - *since_) : std::nullopt;
  }

  // Whether it has lasted so long at least, up to now, when the count is this.
  bool LastsFor(std::chrono::nanoseconds least, uint64_t launches) const {
    return since_ && launches == launches_ && last_look_ - *since_ >= least;
  }

  // Of all stretches together.
  std::chrono::nanoseconds Total() const { return total_; }

  // Once a stretch: it lasts as long as the policy says.
  bool BecomesDue(const IdlePolicy& policy) {
    if (policy.action == IdleAction::kOff || due_ || !since_ || last_look_ - *since_ < policy.after)
      return false;
    due_ = true;
    return true;
  }
  // Once after each stretch that became due.
  bool TakeOver() {
    const bool over = over_;
    over_ = false;
    return over;
  }

 private:
  void Begin(std::chrono::nanoseconds now, uint64_t launches) {
    End();
    since_ = now;
    launches_ = launches;
  }

  std::optional<std::chrono::nanoseconds> since_;
  std::chrono::nanoseconds last_look_{}, total_{};
  uint64_t launches_ = 0;
  bool due_ = false, over_ = false;
};

}  // namespace gpumux::core
