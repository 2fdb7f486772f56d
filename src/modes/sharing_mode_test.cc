// SPDX-License-Identifier: Apache-2.0
#include "modes/sharing_mode.h"

#include <gtest/gtest.h>

namespace gpumux::modes {
namespace {

TEST(SharingMode, IsFoundByItsName) {
  for (const core::Mode mode : core::kModes) {
    EXPECT_EQ(ModeOf(mode).capability().mode, mode);
  }
}

TEST(SharingMode, PromisesAShareOnlyWhereOneIsKept) {
  EXPECT_EQ(ModeOf(core::Mode::kExclusive).capability().share_min_ratio, 1);
  EXPECT_LT(ModeOf(core::Mode::kTimeslice).capability().share_min_ratio, 0);
  EXPECT_EQ(ModeOf(core::Mode::kTurns).capability().share_max_ratio, 1);
}

TEST(SharingMode, RespectsTheGpusComputeMode) {
  using gpu::ComputeMode;
  EXPECT_TRUE(ModeOf(core::Mode::kTimeslice).Supports(ComputeMode::kDefault));
  EXPECT_TRUE(ModeOf(core::Mode::kTimeslice).Supports(ComputeMode::kUnknown));
  EXPECT_FALSE(ModeOf(core::Mode::kTimeslice).Supports(ComputeMode::kExclusiveProcess));
  EXPECT_FALSE(ModeOf(core::Mode::kTimeslice).Supports(ComputeMode::kProhibited));
  EXPECT_TRUE(ModeOf(core::Mode::kTurns).Supports(ComputeMode::kDefault));
  EXPECT_FALSE(ModeOf(core::Mode::kTurns).Supports(ComputeMode::kExclusiveProcess));
  EXPECT_TRUE(ModeOf(core::Mode::kExclusive).Supports(ComputeMode::kExclusiveProcess));
  EXPECT_FALSE(ModeOf(core::Mode::kExclusive).Supports(ComputeMode::kProhibited));
}

}  // namespace
}  // namespace gpumux::modes
