// SPDX-License-Identifier: Apache-2.0
//
// The driver fails under the guard (pitfalls B13, B18): the program sees the
// driver's own code, and no byte is lost.
#include <gtest/gtest.h>

#include "cells.h"

namespace gpumux::test {
namespace {

TEST(GuardFaults, OfTheCallItselfAreTheDriversOwnAndChargeNothing) {
  const Both both = RunBoth({"faults", "own"});
  ASSERT_GE(both.guarded.size(), 300u);
  for (const auto& [key, cell] : both.guarded) {
    const std::string fault = cell["fault"];
    EXPECT_EQ(cell["code"], std::stoi(fault.substr(fault.rfind(' ') + 1))) << key;
    EXPECT_EQ(cell["code"], both.Driver(cell)["code"]) << key;
    EXPECT_EQ(cell["wrote"], both.Driver(cell)["wrote"]) << key;
    ExpectNothingMoved(key, cell);
    EXPECT_EQ(cell["then"], both.Driver(cell)["then"]) << key;
    ExpectAllCameBack(key, cell);
  }
}

TEST(GuardFaults, OfWhatTheGuardAsksMeanwhileLoseNoByte) { ExpectInnerFaultsLoseNoByte("999"); }

TEST(GuardFaults, FromTheStartOnGiveNothingAway) { ExpectFaultsFromTheStartGiveNothingAway("999"); }

}  // namespace
}  // namespace gpumux::test
