// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <gtest/gtest.h>

namespace gpumux {
namespace {

TEST(Nearest, FindsWhatWasMeantAndNothingElse) {
  const std::vector<std::string> names = {"run", "status", "ps", "stop", "version", "help"};
  EXPECT_EQ(Nearest("rum", names), "run");
  EXPECT_EQ(Nearest("sttaus", names), "status");
  EXPECT_EQ(Nearest("stat", names), "status");
  EXPECT_EQ(Nearest("stpo", names), "stop");
  EXPECT_EQ(Nearest("frobnicate", names), std::nullopt);
  EXPECT_EQ(Nearest("", names), std::nullopt);
  EXPECT_EQ(Nearest(std::string(100'000, 'x'), names), std::nullopt);
}

}  // namespace
}  // namespace gpumux
