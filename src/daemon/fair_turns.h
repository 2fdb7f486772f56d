// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <map>
#include <set>

#include "daemon/event_loop.h"

namespace gpumux::daemon {

// Whose work is done next. In each turn of the loop every user gets one piece
// of it, so a user with a thousand connections makes another wait for one piece
// and not for a thousand. Nothing is slowed down while nobody else wants anything.
class FairTurns {
 public:
  explicit FairTurns(EventLoop& loop) : loop_(loop) {}

  // True: do a piece of this user's work now. False: it has had its turn, or
  // has more waiting; give it to Later.
  bool Take(uid_t user);
  void Later(uid_t user, std::function<void()> work);

 private:
  void PostTurn();
  void Turn();

  EventLoop& loop_;
  std::map<uid_t, std::deque<std::function<void()>>> waiting_;
  std::set<uid_t> served_;  // in this turn
  bool posted_ = false;
};

}  // namespace gpumux::daemon
