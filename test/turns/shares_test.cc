// SPDX-License-Identifier: Apache-2.0
//
// What tenants of mode turns get of the GPU's time.
#include <gtest/gtest.h>

#include "scene.h"

namespace gpumux::test {
namespace {

TEST(TurnsShares, EqualPartsForTwo) {
  TurnsBox box;
  const auto parts = box.PartsOf({{"a", ""}, {"b", ""}}, 3);
  EXPECT_NEAR(parts[0] / (parts[0] + parts[1]), 0.5, 0.05);
  EXPECT_GT(parts[0] + parts[1], 0.85);
  // Alone in its turn: the driver's time slices would double it.
  for (const double p50 : box.p50_us) EXPECT_LT(p50, 7500);
}

TEST(TurnsShares, AMinimumBesideTwoWithout) {
  TurnsBox box;
  const auto parts = box.PartsOf({{"a", "60%"}, {"b", ""}, {"c", ""}}, 3);
  const double sum = parts[0] + parts[1] + parts[2];
  EXPECT_NEAR(parts[0] / sum, 0.6, 0.06);
  EXPECT_NEAR(parts[1] / sum, 0.2, 0.04);
  EXPECT_NEAR(parts[2] / sum, 0.2, 0.04);
}

TEST(TurnsShares, ACeilingHoldsAlsoAlone) {
  TurnsBox box;
  EXPECT_NEAR(box.PartsOf({{"a", "10%:30%"}}, 3)[0], 0.3, 0.03);
}

TEST(TurnsShares, AHolderThatIsOftenIdleGivesItsTurnsBack) {
  TurnsBox box;
  // One kernel in every 105 ms.
  const auto parts = box.PartsOf({{"a", ""}, {"b", "", {"--gap-us", "100000"}}}, 3);
  EXPECT_GT(parts[0], 0.85);
  EXPECT_GT(parts[1], 0.03);
}

}  // namespace
}  // namespace gpumux::test
