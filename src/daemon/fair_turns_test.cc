// SPDX-License-Identifier: Apache-2.0
#include "daemon/fair_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace gpumux::daemon {
namespace {

using ::testing::ElementsAre;

TEST(FairTurns, GiveEachUserOnePieceAfterTheOther) {
  EventLoop loop;
  FairTurns turns(loop);
  std::vector<std::string> order;
  const auto piece = [&](uid_t user, const std::string& name, bool last = false) {
    if (turns.Take(user)) {
      order.push_back(name);
      return;
    }
    turns.Later(user, [&order, &loop, name, last] {
      order.push_back(name);
      if (last) loop.Stop();
    });
  };
  loop.Post([&] {
    for (int i = 1; i <= 4; ++i) piece(1, "a" + std::to_string(i));
    piece(2, "b1");
    piece(2, "b2");
    piece(1, "a5", /*last=*/true);
    piece(3, "c1");
  });
  loop.Run();
  EXPECT_THAT(order, ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "a4", "a5"));
}

TEST(FairTurns, TakeNobodysTurnWhileNobodyWaits) {
  EventLoop loop;
  FairTurns turns(loop);
  int taken = 0;
  std::function<void()> again = [&] {
    EXPECT_TRUE(turns.Take(1));
    // The turn is over when the loop has come round.
    if (++taken == 100) return loop.Stop();
    loop.Post([&] { loop.Post(again); });
  };
  loop.Post(again);
  loop.Run();
  EXPECT_EQ(taken, 100);
}

}  // namespace
}  // namespace gpumux::daemon
