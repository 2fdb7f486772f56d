// SPDX-License-Identifier: Apache-2.0
#include "core/mig/geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/mig/profile_name.h"
#include "core/mig/testing/brute_force.h"

namespace gpumux::core::mig {
namespace {

using gpu::MigModel;
using gpu::MigProfile;

const MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

// "1g.18gb at 0, 3g.71gb at 4"
Layout Of(const MigModel& model, const std::vector<std::pair<std::string, uint32_t>>& instances) {
  Layout layout;
  for (const auto& [name, start] : instances) {
    const auto profile = FindProfile(model, name);
    EXPECT_TRUE(profile) << name;
    layout.push_back({start, *(*profile)->id});
  }
  return layout;
}

TEST(MigGeometry, FindsTheLayoutsThatTheTableAllows) {
  std::map<std::string, size_t> counts;
  for (const MigModel& model : gpu::MigModels()) {
    const auto layouts = AllLayouts(model);
    counts[model.key] = layouts.size();
    EXPECT_TRUE(std::ranges::is_sorted(layouts));
    if (!model.placements_known()) continue;
    std::set<testing::Set> ours;
    for (const Layout& layout : layouts) {
      testing::Set one;
      for (const Placed& instance : layout) one.insert({instance.start, instance.profile});
      EXPECT_EQ(one.size(), layout.size());
      EXPECT_TRUE(CheckLayout(model, layout)) << model.key;
      EXPECT_TRUE(ours.insert(one).second) << model.key << ": twice";
    }
    EXPECT_EQ(ours, testing::EveryLayout(model).found) << model.key;
  }
  // The figures of docs/design/mig.md.
  EXPECT_EQ(counts["A30"], 76u);
  EXPECT_EQ(counts["H200"], 2319u);
  EXPECT_EQ(counts["RTX-PRO-6000"], 717u);
  EXPECT_EQ(counts["Thor"], 0u);
}

// Published counts of an A100's layouts: 19 when the GPU as one instance is counted, 18 without.
TEST(MigGeometry, CountsAnA100AsOthersDo) {
  const MigModel& a100 = Gpu("A100-40");
  const std::set<std::string> early = {"1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"};
  const auto counts = [&](const Layout& layout) {
    return std::ranges::all_of(layout,
                               [&](Placed p) { return early.contains(ProfileOf(a100, p.profile).name); });
  };
  size_t full = 0, divided = 0;
  for (const Layout& layout : AllLayouts(a100)) {
    const bool room = std::ranges::any_of(a100.profiles, [&](const MigProfile& profile) {
      return early.contains(profile.name) && !StartsLeft(a100, layout, *profile.id).empty();
    });
    if (!counts(layout) || room) continue;
    ++full;
    divided += layout.size() > 1;
  }
  EXPECT_EQ(full, 19u);
  EXPECT_EQ(divided, 18u);
}

std::string WhyNot(const MigModel& model, const Layout& layout, std::string_view name) {
  const Status status = CanCreateSomewhere(model, layout, *(*FindProfile(model, name))->id);
  return status ? "" : status.error().ToString();
}

TEST(MigGeometry, SaysWhyAnInstanceDoesNotFit) {
  const MigModel& h200 = Gpu("H200");
  EXPECT_EQ(WhyNot(h200, {}, "7g.141gb"), "");
  EXPECT_EQ(WhyNot(h200, Of(h200, {{"1g.18gb", 0}, {"2g.35gb", 4}}), "3g.71gb"),
            "3g.71gb needs placement 0 or 4; 0 is taken by 1g.18gb at 0, 4 by 2g.35gb at 4");
  EXPECT_EQ(WhyNot(h200, Of(h200, {{"1g.18gb", 0}, {"1g.18gb", 2}, {"1g.18gb", 3}}), "4g.71gb"),
            "4g.71gb needs placement 0; 0 is taken by 1g.18gb at 0, 1g.18gb at 2 and 1g.18gb at 3");
  EXPECT_EQ(
      WhyNot(h200, Of(h200, {{"4g.71gb", 0}, {"3g.71gb", 4}}), "1g.18gb"),
      "1g.18gb needs placement 0, 1, 2, 3, 4, 5 or 6; 0, 1, 2 and 3 are taken by 4g.71gb at 0, 4, 5 and 6 by "
      "3g.71gb at 4");
  EXPECT_EQ(
      WhyNot(h200, Of(h200, {{"3g.71gb", 0}, {"2g.35gb", 4}, {"1g.18gb", 6}}), "1g.18gb"),
      "1g.18gb needs placement 0, 1, 2, 3, 4, 5 or 6; 0, 1, 2 and 3 are taken by 3g.71gb at 0, 4 and 5 by "
      "2g.35gb at 4, 6 by 1g.18gb at 6");
  EXPECT_EQ(WhyNot(h200, Of(h200, {{"1g.18gb+me", 3}}), "1g.18gb+me"),
            "1g.18gb+me needs to be the only instance with +me; 1g.18gb+me at 3 has it");
  const MigModel& a30 = Gpu("A30");
  EXPECT_EQ(WhyNot(a30, Of(a30, {{"1g.6gb+me", 0}}), "2g.12gb+me"),
            "2g.12gb+me needs to be the only instance with +me; 1g.6gb+me at 0 has it");
  const MigModel& rtx = Gpu("RTX-PRO-6000");
  EXPECT_EQ(WhyNot(rtx, Of(rtx, {{"1g.24gb-me", 0}, {"1g.24gb+gfx", 3}}), "2g.48gb+me.all"),
            "2g.48gb+me.all needs all media engines; 1g.24gb+gfx at 3 has some of them; 1g.24gb-me has none");
  EXPECT_EQ(WhyNot(rtx, Of(rtx, {{"2g.48gb+me.all", 0}}), "1g.24gb"),
            "1g.24gb needs media engines; 2g.48gb+me.all at 0 has all of them; 1g.24gb-me has none");
  EXPECT_EQ(WhyNot(rtx, Of(rtx, {{"2g.48gb+me.all", 0}}), "2g.48gb+me.all"),
            "2g.48gb+me.all needs to be the only instance with +me.all; 2g.48gb+me.all at 0 has it");
  EXPECT_EQ(WhyNot(rtx, Of(rtx, {{"2g.48gb+me.all", 0}}), "2g.48gb-me"), "");
}

TEST(MigGeometry, SaysWhyAPlaceIsNone) {
  const MigModel& h200 = Gpu("H200");
  const auto why = [&](const Layout& layout, std::string_view name, uint32_t start) {
    const Status status = CanCreate(h200, layout, Of(h200, {{std::string(name), start}})[0]);
    return status ? "" : status.error().ToString();
  };
  EXPECT_EQ(why({}, "3g.71gb", 4), "");
  EXPECT_EQ(why({}, "3g.71gb", 2), "3g.71gb cannot begin at 2; it needs placement 0 or 4");
  EXPECT_EQ(why({}, "4g.71gb", 4), "4g.71gb cannot begin at 4; it needs placement 0");
  EXPECT_EQ(why(Of(h200, {{"1g.18gb", 5}}), "3g.71gb", 4),
            "3g.71gb at 4 needs memory slices 4 to 7; 1g.18gb at 5 is there");
  EXPECT_EQ(why(Of(h200, {{"1g.18gb", 4}, {"1g.18gb", 6}}), "3g.71gb", 4),
            "3g.71gb at 4 needs memory slices 4 to 7; 1g.18gb at 4 and 1g.18gb at 6 are there");
  EXPECT_EQ(why(Of(h200, {{"1g.18gb", 4}}), "1g.18gb", 4),
            "1g.18gb at 4 needs memory slice 4; 1g.18gb at 4 is there");
  EXPECT_EQ(why(Of(h200, {{"1g.18gb+me", 4}}), "1g.18gb+me", 5),
            "1g.18gb+me needs to be the only instance with +me; 1g.18gb+me at 4 has it");
  EXPECT_EQ(CanCreate(h200, {}, {0, 77}).error().ToString(), "H200 has no profile with id 77");
  EXPECT_EQ(CanCreate(h200, {{3, 78}}, {0, 0}).error().ToString(), "H200 has no profile with id 78");
  EXPECT_EQ(CheckLayout(h200, {{0, 9}, {0, 5}}).error().ToString(),
            "3g.71gb at 0 needs memory slices 0 to 3; 4g.71gb at 0 is there");
  for (const char* key : {"RTX-PRO-5000", "RTX-PRO-4500", "Thor"}) {
    const std::string text =
        std::string("where instances of ") + key +
        " can be is in no document: only its driver knows; ask on a machine that has one";
    EXPECT_EQ(CheckLayout(Gpu(key), {}).error().ToString(), text);
    EXPECT_EQ(CanCreateSomewhere(Gpu(key), {}, 0).error().ToString(), text);
    EXPECT_EQ(CheckLayout(Gpu(key), {}).error().code, Code::kUnsupported);
  }
}

// No GPU of the table comes to these: there the placements say it all. A driver may tell of another.
TEST(MigGeometry, CountsWhatADriverTells) {
  MigModel model = Gpu("A30");
  model.compute_slices = 3;
  EXPECT_EQ(WhyNot(model, Of(model, {{"2g.12gb", 0}}), "2g.12gb"),
            "2g.12gb needs compute slices: 2; 2 of 3 are taken");
  model.compute_slices = 4;
  model.profiles[0].max_instances = 1;
  EXPECT_EQ(WhyNot(model, Of(model, {{"1g.6gb", 0}}), "1g.6gb"),
            "1g.6gb is on the GPU as often as it can be: 1");
  model.profiles[0].max_instances = 4;
  model.max_instances = 2;
  EXPECT_EQ(WhyNot(model, Of(model, {{"1g.6gb", 0}, {"1g.6gb", 1}}), "1g.6gb"),
            "A30 can have 2 instances at most, and has as many");
  EXPECT_TRUE(StartsLeft(model, Of(model, {{"1g.6gb", 0}, {"1g.6gb", 1}}), 14).empty());
}

TEST(MigGeometry, DoesNotBelieveADriverThatTellsWhatCannotBe) {
  MigModel model = Gpu("A30");
  const auto refused = [&] {
    const Status status = CheckPlacementsKnown(model);
    return status ? "" : status.error().ToString();
  };
  EXPECT_EQ(refused(), "");
  const std::string text = "what the driver tells of placements on A30 cannot be";
  model.memory_slices = 65;
  EXPECT_EQ(refused(), text);
  model.memory_slices = 4;
  model.profiles[0].starts.push_back(4);
  EXPECT_EQ(refused(), text);
  model.profiles[0].starts.back() = 4294967295u;
  EXPECT_EQ(refused(), text);
  model.profiles[0].starts.pop_back();
  model.profiles[0].memory_slices = 0;
  EXPECT_EQ(refused(), text);
  EXPECT_TRUE(AllLayouts(model).empty());
}

// A GPU of another generation may have more sets than can be looked at.
TEST(MigGeometry, EndsWithManyLayouts) {
  MigModel model = Gpu("A30");
  model.memory_slices = model.compute_slices = model.max_instances = 20;
  for (MigProfile& profile : model.profiles) {
    profile.max_instances = 20;
    profile.starts.clear();
    for (uint32_t start = 0; start + *profile.memory_slices <= 20; ++start) profile.starts.push_back(start);
  }
  EXPECT_EQ(AllLayouts(model).size(), kMostLayouts);
}

TEST(MigGeometry, TellsWhatIsLeft) {
  const MigModel& h200 = Gpu("H200");
  const Layout layout = Of(h200, {{"1g.18gb", 0}, {"2g.35gb", 4}});
  using Starts = std::vector<uint32_t>;
  EXPECT_EQ(StartsLeft(h200, layout, 19), (Starts{1, 2, 3, 6}));
  EXPECT_EQ(StartsLeft(h200, layout, 15), (Starts{2, 6}));
  EXPECT_EQ(StartsLeft(h200, layout, 14), (Starts{2}));
  EXPECT_EQ(StartsLeft(h200, layout, 9), (Starts{}));
  EXPECT_EQ(StartsLeft(h200, layout, 77), (Starts{}));
  EXPECT_EQ(RemainingCapacity(h200, layout, 19), 4u);
  EXPECT_EQ(RemainingCapacity(h200, layout, 20), 1u);
  EXPECT_EQ(RemainingCapacity(h200, {}, 14), 3u);
  EXPECT_EQ(RemainingCapacity(h200, {}, 15), 4u);
  for (const MigModel& model : gpu::MigModels()) {
    for (const MigProfile& profile : model.profiles) {
      if (!profile.placements_known()) continue;
      EXPECT_EQ(RemainingCapacity(model, {}, *profile.id), profile.max_instances)
          << model.key << " " << profile.name;
    }
  }
}

// As nvidia-smi mig -lcip prints them of an A100, and the 3g of the guide.
TEST(MigGeometry, KnowsComputeInstances) {
  using Sizes = std::vector<uint32_t>;
  EXPECT_EQ(ComputeInstanceSizes(1), (Sizes{1}));
  EXPECT_EQ(ComputeInstanceSizes(2), (Sizes{1, 2}));
  EXPECT_EQ(ComputeInstanceSizes(3), (Sizes{1, 2, 3}));
  EXPECT_EQ(ComputeInstanceSizes(4), (Sizes{1, 2, 4}));
  EXPECT_EQ(ComputeInstanceSizes(7), (Sizes{1, 2, 3, 4, 7}));
  const MigProfile& three = ProfileOf(Gpu("H200"), 9);
  EXPECT_TRUE(CheckComputeInstances(three, {1, 1, 1}));
  EXPECT_TRUE(CheckComputeInstances(three, {2, 1}));
  EXPECT_TRUE(CheckComputeInstances(three, {3}));
  EXPECT_EQ(CheckComputeInstances(three, {2, 2}).error().ToString(),
            "compute instances of 2 and 2 slices need 4; 3g.71gb has 3");
  EXPECT_EQ(CheckComputeInstances(ProfileOf(Gpu("H200"), 5), {3}).error().ToString(),
            "4g.71gb can have no compute instance of 3 slices; of 1, 2 or 4 it can");
  EXPECT_FALSE(CheckComputeInstances(three, {0}));
}

}  // namespace
}  // namespace gpumux::core::mig
