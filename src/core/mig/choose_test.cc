// SPDX-License-Identifier: Apache-2.0
#include "core/mig/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::core::mig {
namespace {

using testing::HasSubstr;

constexpr uint32_t k1g = 19, k2g = 14, k3g = 9, k4g = 5, k7g = 0;

const gpu::MigModel& H200() { return **gpu::FindMigModel("H200"); }

std::string Chosen(const std::vector<Present>& present, const std::vector<uint32_t>& profiles) {
  const auto layout = ChooseLayout(H200(), present, profiles);
  if (!layout) return layout.error().message;
  std::string text;
  for (const Placed& each : *layout) text += (text.empty() ? "" : ", ") + Name(H200(), each);
  return text;
}

TEST(MigChoose, LeavesRoomForWhatComesNext) {
  EXPECT_EQ(Chosen({}, {k1g}), "1g.18gb at 6");
  EXPECT_EQ(Chosen({}, {}), "");
  EXPECT_EQ(Chosen({}, {k3g, k4g}), "4g.71gb at 0, 3g.71gb at 4");
}

TEST(MigChoose, KeepsWhatIsThereWhereItCanBe) {
  EXPECT_EQ(Chosen({{{2, k1g}}, {{3, k1g}}}, {k1g, k3g}), "1g.18gb at 2, 3g.71gb at 4");
  // What is in use stays rather than two that are not.
  EXPECT_EQ(Chosen({{{0, k1g}}, {{1, k1g}}, {{5, k1g}, {"train"}}}, {k3g, k1g}),
            "3g.71gb at 0, 1g.18gb at 5");
  // All of these cannot: then one that is in use has to go, and the steps say so.
  EXPECT_EQ(Chosen({{{0, k1g}, {"a"}}}, {k7g}), "7g.141gb at 0");
}

TEST(MigChoose, SaysWhyTheyDoNotFit) {
  EXPECT_THAT(Chosen({}, {k3g, k3g, k2g}), HasSubstr("2g.35gb"));
  EXPECT_THAT(Chosen({}, {k4g, k4g}), HasSubstr("4g.71gb"));
  EXPECT_THAT(Chosen({}, {99}), HasSubstr("has no profile 99"));
}

}  // namespace
}  // namespace gpumux::core::mig
