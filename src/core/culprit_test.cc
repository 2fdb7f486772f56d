// SPDX-License-Identifier: Apache-2.0
#include "core/culprit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Suspect Of(const std::string& tenant) {
  Suspect suspect;
  suspect.tenant = tenant;
  return suspect;
}

TEST(Culprit, IsWhoDiedWithWorkUnderWayAndWasNotHeld) {
  Suspect dead = Of("b");
  dead.torn_down_before = milliseconds(160);
  EXPECT_EQ(FindCulprit({Of("a"), dead, Of("c")}).tenant, "b");
  // Two of one tenant are one tenant; of two tenants none is accused.
  EXPECT_EQ(FindCulprit({Of("a"), dead, dead}).tenant, "b");
  Suspect other = dead;
  other.tenant = "a";
  EXPECT_EQ(FindCulprit({other, dead}).tenant, "");
  // Idle when it died, or long ago: not by that.
  dead.busy = false;
  EXPECT_EQ(FindCulprit({Of("a"), dead, Of("c")}).tenant, "");
  dead.busy = true;
  dead.torn_down_before = seconds(30);
  EXPECT_EQ(FindCulprit({Of("a"), dead, Of("c")}).tenant, "");
}

TEST(Culprit, IsTheOnlyOneAtWork) {
  Suspect idle = Of("a");
  idle.busy = false;
  EXPECT_EQ(FindCulprit({idle, Of("b")}).tenant, "b");
  EXPECT_EQ(FindCulprit({Of("b")}).tenant, "b");
}

TEST(Culprit, NobodyIsAccusedWithoutAReason) {
  const Culprit culprit = FindCulprit({Of("a"), Of("b")});
  EXPECT_EQ(culprit.tenant, "");
  EXPECT_FALSE(culprit.why.empty());
  EXPECT_EQ(FindCulprit({}).tenant, "");
}

}  // namespace
}  // namespace gpumux::core
