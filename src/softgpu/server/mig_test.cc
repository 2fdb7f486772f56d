// SPDX-License-Identifier: Apache-2.0
#include "softgpu/server/mig.h"

#include <gtest/gtest.h>

#include <random>

#include "core/mig/geometry.h"

namespace gpumux::softgpu {
namespace {

using namespace nvml;
namespace geometry = core::mig;

MigGpu Of(const gpu::MigModel& model) {
  MigGpu mig(MigProfilesOf(model, 100ULL << 30, 100), model);
  mig.Boot(true);
  return mig;
}

geometry::Layout LayoutOf(const MigGpu& mig) {
  geometry::Layout layout;
  for (const auto& [id, instance] : mig.instances()) layout.push_back({instance.start, instance.profile.id});
  return layout;
}

// Two programs that know nothing of each other decide what fits: this one and the planner's geometry.
// They agree on every placement of every profile, whatever is there already.
TEST(MigGpu, WhatFitsIsWhatThePlannerSays) {
  std::mt19937 random(20261130);
  int asked = 0, fitted = 0;
  for (const gpu::MigModel& model : gpu::MigModels()) {
    if (!model.placements_known()) {
      EXPECT_FALSE(Of(model).capable()) << model.key;
      continue;
    }
    for (int walk = 0; walk < 40; ++walk) {
      MigGpu mig = Of(model);
      for (uint32_t step = 1; step < 12; ++step) {
        const geometry::Layout layout = LayoutOf(mig);
        std::vector<geometry::Placed> fits;
        for (const gpu::MigProfile& profile : model.profiles) {
          for (uint32_t start = 0; start < *model.memory_slices; ++start) {
            const geometry::Placed placed{start, *profile.id};
            MigGpu trial = mig;
            const bool made = trial.Create(*profile.id, start, 77) == NVML_SUCCESS;
            const Status said = geometry::CanCreate(model, layout, placed);
            ASSERT_EQ(made, said.has_value())
                << model.key << ": " << geometry::Name(model, placed) << (said ? "" : said.error().message);
            ++asked;
            if (made) fits.push_back(placed);
          }
          uint32_t room = 99;
          ASSERT_EQ(mig.Room(*profile.id, &room), NVML_SUCCESS);
          ASSERT_EQ(room, geometry::RemainingCapacity(model, layout, *profile.id))
              << model.key << " " << profile.name;
        }
        if (fits.empty()) break;
        fitted += static_cast<int>(fits.size());
        const geometry::Placed next = fits[random() % fits.size()];
        ASSERT_EQ(mig.Create(next.profile, next.start, 100 + step), NVML_SUCCESS);
      }
    }
  }
  EXPECT_GT(asked, 100'000);
  EXPECT_GT(fitted, 5'000);
}

// Instances of one GPU never have the same id, and the same place has the same id.
TEST(MigGpu, IdsTellInstancesApart) {
  for (const gpu::MigModel& model : gpu::MigModels()) {
    for (const geometry::Layout& layout : geometry::AllLayouts(model)) {
      MigGpu mig = Of(model);
      uint32_t number = kFirstPlace;
      for (const geometry::Placed& placed : layout)
        ASSERT_EQ(mig.Create(placed.profile, placed.start, number++), NVML_SUCCESS) << model.key;
      ASSERT_EQ(mig.instances().size(), layout.size()) << model.key;
    }
  }
}

TEST(MigGpu, ComputeInstancesAreAsThePlannerSays) {
  for (const char* key : {"H200", "A100-40", "A30", "RTX-PRO-6000"}) {
    const gpu::MigModel& model = **gpu::FindMigModel(key);
    const MigGpu mig = Of(model);
    for (const MigProfileEntry& profile : mig.profiles()) {
      std::vector<uint32_t> sizes;
      for (const MigComputeEntry& entry : profile.compute) {
        if (entry.slices != 0) sizes.push_back(entry.slices);
      }
      EXPECT_EQ(sizes, geometry::ComputeInstanceSizes(profile.compute_slices)) << key << " " << profile.name;
    }
  }
}

TEST(MigGpu, OutlivesItsServer) {
  const gpu::MigModel& model = **gpu::FindMigModel("H200");
  MigGpu mig = Of(model);
  ASSERT_EQ(mig.Create(9, 4, kFirstPlace + 3), NVML_SUCCESS);
  ASSERT_EQ(mig.Create(19, 1, kFirstPlace + 4), NVML_SUCCESS);
  ASSERT_EQ(mig.CreateCompute(kFirstPlace + 3, 1, std::nullopt, kFirstPlace + 5), NVML_SUCCESS);
  const std::string saved = mig.Save();
  MigGpu again = Of(model);
  again.Boot(false);
  ASSERT_TRUE(again.Restore(saved));
  EXPECT_TRUE(again.enabled());
  EXPECT_EQ(again.Save(), saved);
  ASSERT_NE(again.FindCompute(kFirstPlace + 5), nullptr);
  EXPECT_EQ(again.FindCompute(kFirstPlace + 5)->sms, 32);
}

TEST(MigGpu, AStateThatIsNoneLeavesNothing) {
  const std::string good = "mode 1 1\n";
  const std::string first = std::to_string(kFirstPlace), second = std::to_string(kFirstPlace + 1);
  const std::string bad[] = {
      "mode 2 1\n",
      "mode 1\n",
      "nonsense\n",
      good + "gpu-instance 5 19 0\n",                // no number of an instance
      good + "gpu-instance " + first + " 77 0\n",    // no profile
      good + "gpu-instance " + first + " 9 1\n",     // no place of it
      good + "gpu-instance " + first + " 19 0 8\n",  // too much
      good + "gpu-instance " + first + " 0 0\ngpu-instance " + second + " 19 0\n",  // one on the other
      good + "gpu-instance " + first + " 19 0\ngpu-instance " + first + " 19 1\n",  // one number for two
      good + "compute-instance " + first + " 0 0 " + second + "\n",                 // of none
      "mode 0 0\ngpu-instance " + first + " 19 0\n",                                // MIG is off
      good + "gpu-instance " + first + " 19 99999999999999999999\n",
  };
  for (const std::string& text : bad) {
    MigGpu mig = Of(**gpu::FindMigModel("H200"));
    EXPECT_FALSE(mig.Restore(text)) << text;
    EXPECT_TRUE(mig.instances().empty()) << text;
    EXPECT_FALSE(mig.enabled()) << text;
  }
}

}  // namespace
}  // namespace gpumux::softgpu
