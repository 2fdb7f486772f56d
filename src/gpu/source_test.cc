// SPDX-License-Identifier: Apache-2.0
#include "gpu/source.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gpumux::gpu {
namespace {

class Source : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("GPUMUX_SOFTGPU");
    unsetenv("GPUMUX_SOFTGPU_DIR");
  }
};

TEST_F(Source, OffNeverGivesASoftwareGpu) {
  setenv("GPUMUX_SOFTGPU", "off", 1);
  const auto source = FindGpuSource();
  if (HasNvidiaDriver()) {
    ASSERT_TRUE(source);
    EXPECT_FALSE(source->simulated);
  } else {
    ASSERT_FALSE(source);
    EXPECT_EQ(source.error().code, Code::kUnsupported);
  }
}

TEST_F(Source, RefusesARelativeStateDirectory) {
  setenv("GPUMUX_SOFTGPU", "H200", 1);
  setenv("GPUMUX_SOFTGPU_DIR", "state", 1);
  const auto source = FindGpuSource();
  ASSERT_FALSE(source);
  EXPECT_EQ(source.error().code, Code::kInvalid);
}

}  // namespace
}  // namespace gpumux::gpu
