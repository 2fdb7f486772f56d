// SPDX-License-Identifier: Apache-2.0
#include "core/rate_limit.h"

#include <gtest/gtest.h>

namespace gpumux::core {
namespace {

using namespace std::chrono_literals;
constexpr RateLimit::Time kStart = 100s;

TEST(RateLimit, LetsABurstThroughAndThenSoManyASecond) {
  RateLimit limit(10, 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limit.Wait(1, kStart), 0s) << i;
  EXPECT_EQ(limit.Wait(1, kStart), 100ms);
  EXPECT_EQ(limit.Wait(1, kStart), 200ms);
  // Half a second later those are through, and three more.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Wait(1, kStart + 500ms), 0s) << i;
  EXPECT_EQ(limit.Wait(1, kStart + 500ms), 100ms);
}

TEST(RateLimit, IsEachUsersOwn) {
  RateLimit limit(10, 5);
  for (int i = 0; i < 100; ++i) limit.Wait(1, kStart);
  EXPECT_EQ(limit.Wait(2, kStart), 0s);
  EXPECT_EQ(limit.Wait(1, kStart), 9600ms);
}

TEST(RateLimit, SavesNoMoreThanABurst) {
  RateLimit limit(10, 5);
  limit.Wait(1, kStart);
  unsigned at_once = 0;
  while (limit.Wait(1, kStart + 1h) == 0s) ++at_once;
  EXPECT_EQ(at_once, 5u);
}

TEST(RateLimit, ForgetsUsersOfThePast) {
  RateLimit limit(10, 5);
  for (uid_t user = 0; user < 10000; ++user) limit.Wait(user, kStart + user * 1s);
  EXPECT_LE(limit.users(), 257u);
}

}  // namespace
}  // namespace gpumux::core
