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
  suspect.error = 700;
  return suspect;
}

TEST(Culprit, IsWhoDiedWithWorkUnderWay) {
  Suspect dead = Of("b");
  dead.error = 0;
  dead.died_before = milliseconds(160);
  EXPECT_EQ(FindCulprit({Of("a"), dead, Of("c")}).tenant, "b");
  // Idle when it died, or long ago: not by that.
  dead.busy = false;
  EXPECT_EQ(FindCulprit({Of("a"), dead, Of("c")}).tenant, "");
  dead.busy = true;
  dead.died_before = seconds(30);
  EXPECT_EQ(FindCulprit({Of("a"), dead, Of("c")}).tenant, "");
}

TEST(Culprit, IsWhoHasAnErrorOfItsOwn) {
  Suspect own = Of("b");
  own.error = 716;
  const Culprit culprit = FindCulprit({Of("a"), own});
  EXPECT_EQ(culprit.tenant, "b");
  EXPECT_EQ(culprit.why, "it alone has error 716");
  // Two of one tenant are one tenant; of two tenants none is accused.
  EXPECT_EQ(FindCulprit({Of("a"), own, own}).tenant, "b");
  Suspect other = own;
  other.tenant = "a";
  EXPECT_EQ(FindCulprit({other, own}).tenant, "");
  // What MPS itself says is nobody's fault on the GPU.
  own.error = 806;
  EXPECT_EQ(FindCulprit({Of("a"), own}).tenant, "");
}

TEST(Culprit, IsTheOnlyOneAtWork) {
  Suspect idle = Of("a");
  idle.busy = false;
  EXPECT_EQ(FindCulprit({idle, Of("b")}).tenant, "b");
  EXPECT_EQ(FindCulprit({Of("b")}).tenant, "b");
}

TEST(Culprit, IsTheOnlyOneThatWasAlwaysThere) {
  Suspect always = Of("b");
  always.in_every_fault = true;
  EXPECT_EQ(FindCulprit({Of("a"), always, Of("c")}).tenant, "b");
}

TEST(Culprit, NobodyIsAccusedWithoutAReason) {
  const Culprit culprit = FindCulprit({Of("a"), Of("b")});
  EXPECT_EQ(culprit.tenant, "");
  EXPECT_FALSE(culprit.why.empty());
  EXPECT_EQ(FindCulprit({}).tenant, "");
}

}  // namespace
}  // namespace gpumux::core
