// SPDX-License-Identifier: Apache-2.0
//
// Programs can say that they give back memory which they only cache
// (on_reclaim). Whom to ask for it, and when: pure, time is an argument.
// docs/design/reclaim.md has the picture.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/queue.h"

namespace gpumux::core {

// An answer is waited for this long; who waits is refused then, if nobody else
// gives. The guard takes a daemon for hung after 5 s without a reply, so this
// and the time to say so must stay below.
inline constexpr std::chrono::nanoseconds kAnswerLimit = std::chrono::seconds(3);
// Emptying a cache costs the program that has to fill it again. After it gave what
// was wanted it is spared for a moment; after less, it does not have it, and
// somebody may wait for hours: for longer each time.
inline constexpr std::chrono::nanoseconds kSparedAfterGift = std::chrono::milliseconds(250);
inline constexpr std::chrono::nanoseconds kSparedAtFirst = std::chrono::seconds(5);
inline constexpr std::chrono::nanoseconds kSparedAtMost = std::chrono::seconds(80);

// What was asked of one process, and how it answered. One question at a time:
// who has not answered the last one is not asked again, however long it takes.
class AskRecord {
 public:
  bool MayAsk(std::chrono::nanoseconds now) const { return !asked_ && now >= spared_until_; }
  // Asked, not answered, and still in time.
  bool Awaited(std::chrono::nanoseconds now) const { return asked_ && now < *asked_ + kAnswerLimit; }
  bool UnderWay() const { return asked_.has_value(); }
  void Asked(std::chrono::nanoseconds now, uint64_t wanted_bytes) {
    asked_ = now;
    wanted_bytes_ = wanted_bytes;
  }
  void Answered(std::chrono::nanoseconds now, uint64_t given_bytes) {
    asked_.reset();
    if (given_bytes >= wanted_bytes_) {
      spared_until_ = now + kSparedAfterGift;
      spare_next_ = kSparedAtFirst;
    } else {
      spared_until_ = now + spare_next_;
      spare_next_ = std::min(2 * spare_next_, kSparedAtMost);
    }
  }

 private:
  std::optional<std::chrono::nanoseconds> asked_;
  uint64_t wanted_bytes_ = 0;
  std::chrono::nanoseconds spare_next_ = kSparedAtFirst;
  std::chrono::nanoseconds spared_until_ = std::chrono::nanoseconds::min();
};

// Of processes that could give so many bytes each: the indices of those to ask
// for `wanted_bytes`, the largest first, and no more than could be enough. Empty
// if all together are not: then nobody is disturbed.
std::vector<size_t> WhomToAsk(const std::vector<uint64_t>& could_give_bytes, uint64_t wanted_bytes);

struct RoomWanted {
  uint64_t request_id = 0;
  size_t gpu = 0;  // index into the snapshots
  uint64_t bytes = 0;
};

// The requests that would start if each GPU had `could_give_bytes` more to
// promise, in their order, and how many bytes each of them lacks on which GPU.
std::vector<RoomWanted> RoomThatWaitersLack(const std::deque<Queue::Waiting>& waiting,
                                            std::vector<GpuSnapshot> gpus,
                                            const std::vector<uint64_t>& could_give_bytes);

}  // namespace gpumux::core
