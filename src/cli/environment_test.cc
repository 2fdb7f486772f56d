// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumux::cli {
namespace {

using ::testing::UnorderedElementsAre;

TEST(TenantEnvironment, ReplacesAddsAndPutsInFrontOnce) {
  const char* ours[] = {
      "HOME=/h", "CUDA_VISIBLE_DEVICES=1", "LD_PRELOAD=/a.so:/guard.so", "LD_LIBRARY_PATH=", "ODD", nullptr};
  EXPECT_THAT(TenantEnvironment(ours, {{"CUDA_VISIBLE_DEVICES", "GPU-1"}, {"GPUMUX_TENANT", "t-1"}},
                                {{"LD_PRELOAD", "/guard.so"}, {"LD_LIBRARY_PATH", "/soft"}}),
              UnorderedElementsAre("HOME=/h", "ODD", "CUDA_VISIBLE_DEVICES=GPU-1", "GPUMUX_TENANT=t-1",
                                   "LD_PRELOAD=/guard.so:/a.so", "LD_LIBRARY_PATH=/soft"));
}

TEST(TenantEnvironment, PrependsToWhatIsAbsentAndToWhatIsSet) {
  const char* ours[] = {nullptr};
  EXPECT_THAT(TenantEnvironment(ours, {}, {{"LD_PRELOAD", "/g.so"}}),
              UnorderedElementsAre("LD_PRELOAD=/g.so"));
  EXPECT_THAT(TenantEnvironment(ours, {{"P", "/b"}}, {{"P", "/a"}}), UnorderedElementsAre("P=/a:/b"));
}

}  // namespace
}  // namespace gpumux::cli
