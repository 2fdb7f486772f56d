// SPDX-License-Identifier: Apache-2.0
//
// As faults_test.cc, with the other codes that a driver's answer may have.
#include <gtest/gtest.h>

#include "cells.h"

namespace gpumux::test {
namespace {

class GuardFaultsOfCode : public ::testing::TestWithParam<const char*> {};

TEST_P(GuardFaultsOfCode, OfWhatTheGuardAsksMeanwhileLoseNoByte) { ExpectInnerFaultsLoseNoByte(GetParam()); }

TEST_P(GuardFaultsOfCode, FromTheStartOnGiveNothingAway) {
  ExpectFaultsFromTheStartGiveNothingAway(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Codes, GuardFaultsOfCode, ::testing::Values("1", "2", "400", "700", "801"));

}  // namespace
}  // namespace gpumux::test
