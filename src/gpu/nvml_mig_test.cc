// SPDX-License-Identifier: Apache-2.0
//
// The library of test/guard/fake_nvml_mig.cc: a driver that is not to be believed. What a good one says is
// tested with the software GPU (test/softgpu/mig_view_test.cc).
#include "gpu/nvml_mig.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "gpu/nvml.h"

namespace gpumux::gpu {
namespace {

TEST(NvmlMig, NoCountIsBelievedAndNoTextIsEndless) {
  const auto test_dir = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  auto nvml = Nvml::Open({.simulated = true, .spec = "", .dir = "", .libraries_dir = test_dir / "fake_nvml"});
  ASSERT_TRUE(nvml) << nvml.error().ToString();
  Mig& mig = (*nvml)->mig();
  const Uuid gpu = (*nvml)->Devices().at(0).uuid;
  EXPECT_EQ(*mig.Modes(gpu), std::nullopt);
  EXPECT_TRUE(mig.Devices(gpu)->empty());
  setenv("FAKE_NVML_MIG", "1", 1);
  EXPECT_EQ(*mig.Modes(gpu), (MigModes{true, true}));
  const auto profiles = mig.Profiles(gpu);
  ASSERT_TRUE(profiles);
  EXPECT_EQ(profiles->size(), 64u);
  EXPECT_EQ(profiles->front().name.size(), 96u);
  EXPECT_TRUE(profiles->front().starts.empty());
  const auto instances = mig.Instances(gpu);
  ASSERT_FALSE(instances);
  EXPECT_NE(instances.error().message.find("more GPU instances than there can be"), std::string::npos);
  EXPECT_EQ(mig.Devices(gpu)->size(), 64u);
  unsetenv("FAKE_NVML_MIG");
}

}  // namespace
}  // namespace gpumux::gpu
