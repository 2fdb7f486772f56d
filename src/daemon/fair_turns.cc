// SPDX-License-Identifier: Apache-2.0
#include "daemon/fair_turns.h"

#include <vector>

namespace gpumux::daemon {

bool FairTurns::Take(uid_t user) {
  if (served_.contains(user) || waiting_.contains(user)) return false;
  served_.insert(user);
  PostTurn();
  return true;
}

void FairTurns::Later(uid_t user, std::function<void()> work) {
  waiting_[user].push_back(std::move(work));
  PostTurn();
}

void FairTurns::PostTurn() {
  if (posted_) return;
  posted_ = true;
  loop_.Post([this] {
    posted_ = false;
    Turn();
  });
}

void FairTurns::Turn() {
  served_.clear();
  std::vector<std::function<void()>> pieces;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    served_.insert(it->first);
    pieces.push_back(std::move(it->second.front()));
    it->second.pop_front();
    it = it->second.empty() ? waiting_.erase(it) : std::next(it);
  }
  // The next turn is after what came meanwhile.
  if (!served_.empty()) PostTurn();
  for (const auto& piece : pieces) piece();
}

}  // namespace gpumux::daemon
