// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>

namespace gpumux::core {

// So many requests a second for each user, and a burst of so many after a quiet
// time. Nobody is refused: who is too fast is told how long to wait.
class RateLimit {
 public:
  using Time = std::chrono::nanoseconds;
  RateLimit(unsigned per_second, unsigned burst);

  // One more request of this user at `now`, which never goes back: how long it
  // has to wait for its turn. Every request counts, also one that waits.
  Time Wait(uid_t user, Time now);

  size_t users() const { return due_.size(); }

 private:
  const Time each_;
  const Time burst_;
  // When the user's requests so far would be done one after the other; a user
  // of whom that is long past is as good as new, and forgotten.
  std::map<uid_t, Time> due_;
};

}  // namespace gpumux::core
