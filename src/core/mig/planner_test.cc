// SPDX-License-Identifier: Apache-2.0
#include "core/mig/planner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/units.h"
#include "core/mig/profile_name.h"

namespace gpumux::core::mig {
namespace {

const gpu::MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

Placed One(std::string_view name, uint32_t start, std::string_view gpu = "H200") {
  return {start, *(*FindProfile(Gpu(gpu), name))->id};
}

GpuState H200(std::vector<Present> present = {}) { return {"GPU 0", &Gpu("H200"), std::move(present)}; }

Plan Planned(const std::vector<GpuState>& gpus, const std::vector<Want>& wants,
             const PlanOptions& options = {}) {
  auto plan = MakePlan(gpus, wants, options);
  EXPECT_TRUE(plan) << plan.error().ToString();
  return plan ? *plan : Plan{};
}

std::vector<std::string> Names(const GpuState& gpu, const Layout& layout) {
  std::vector<std::string> names;
  for (const Placed& instance : layout) names.push_back(Name(*gpu.model, instance));
  return names;
}

using Strings = std::vector<std::string>;

TEST(MigPlanner, FindsTheLayoutThatWasAskedFor) {
  const Plan plan = Planned({H200()}, {{"a", 3, "1g.18gb"}, {"b", 1, "3g.71gb"}});
  EXPECT_EQ(plan.score.placed, 4u);
  EXPECT_TRUE(plan.unplaced.empty());
  EXPECT_TRUE(plan.most_placed);
  // Of both ways the one that leaves more open: beside the 3g at 4 there is room for a 1g, beside one at 0
  // there is not.
  EXPECT_EQ(Names(H200(), plan.gpus[0].layout),
            (Strings{"1g.18gb at 0", "1g.18gb at 1", "1g.18gb at 2", "3g.71gb at 4"}));
}

TEST(MigPlanner, TakesTheSmallestInstanceThatDoes) {
  const auto instance = [&](uint64_t bytes, double share) {
    return Names(H200(), Planned({H200()}, {{"a", 1, "", bytes, share}}).gpus[0].layout);
  };
  EXPECT_EQ(instance(14 * kGiB, 0)[0].substr(0, 7), "1g.18gb");
  // It is called 18gb and has 16 GiB.
  EXPECT_EQ(instance(17 * kGiB, 0)[0].substr(0, 7), "1g.35gb");
  EXPECT_EQ(instance(14 * kGiB, 0.15)[0].substr(0, 7), "1g.35gb");
  EXPECT_EQ(instance(14 * kGiB, 0.2)[0].substr(0, 7), "2g.35gb");
  EXPECT_EQ(instance(40 * kGiB, 0)[0].substr(0, 7), "3g.71gb");
  EXPECT_EQ(instance(40 * kGiB, 0.47)[0].substr(0, 7), "4g.71gb");
  EXPECT_EQ(instance(100 * kGiB, 0)[0].substr(0, 8), "7g.141gb");
}

TEST(MigPlanner, LetsTenantsShareAnInstanceOnlyIfTheyMay) {
  const std::vector<Want> own = {{"a", 8, "", 14 * kGiB}};
  const std::vector<Want> shared = {{"a", 8, "", 14 * kGiB, 0, true}};
  const Plan apart = Planned({H200()}, own), together = Planned({H200()}, shared);
  EXPECT_EQ(apart.score.placed, 7u);
  ASSERT_EQ(apart.unplaced.size(), 1u);
  EXPECT_EQ(apart.unplaced[0].count, 1u);
  EXPECT_EQ(
      apart.unplaced[0].why,
      "1g.18gb needs placement 0, 1, 2, 3, 4, 5 or 6; 0 is taken by 1g.18gb at 0, 1 by 1g.18gb at 1, 2 by "
      "1g.18gb at 2, 3 by 1g.18gb at 3, 4 by 1g.18gb at 4, 5 by 1g.18gb at 5, 6 by 1g.18gb at 6");
  EXPECT_EQ(together.score.placed, 8u);
  for (const Given& given : together.gpus[0].given) {
    const auto& profile = ProfileOf(Gpu("H200"), given.instance.profile);
    EXPECT_LE(given.whom.size() * 14 * kGiB, *profile.bytes);
  }
}

TEST(MigPlanner, UsesWhatIsThereAndLeavesWhatIsInUse) {
  const std::vector<Present> present = {{One("1g.18gb", 0), {"train"}}, {One("3g.71gb", 4)}};
  const Plan plan = Planned({H200(present)}, {{"a", 1, "3g.71gb"}, {"b", 1, "2g.35gb"}});
  EXPECT_EQ(plan.score.placed, 2u);
  EXPECT_EQ(plan.score.destroyed, 0u);
  EXPECT_EQ(plan.score.created, 1u);
  EXPECT_EQ(Names(H200(), plan.gpus[0].layout), (Strings{"1g.18gb at 0", "2g.35gb at 2", "3g.71gb at 4"}));
  ASSERT_EQ(plan.gpus[0].given.size(), 2u);
  EXPECT_FALSE(plan.gpus[0].given[0].existing);
  EXPECT_TRUE(plan.gpus[0].given[1].existing);
  EXPECT_TRUE(plan.gpus[0].moved.empty());
}

TEST(MigPlanner, RemovesIdleInstancesOnlyIfTheyAreInTheWay) {
  const std::vector<Present> present = {{One("2g.35gb", 0)}, {One("1g.18gb", 6)}};
  EXPECT_EQ(Planned({H200(present)}, {{"a", 1, "1g.35gb"}}).score.destroyed, 0u);
  const Plan plan = Planned({H200(present)}, {{"a", 1, "4g.71gb"}});
  EXPECT_EQ(Names(H200(), plan.gpus[0].layout), (Strings{"4g.71gb at 0", "1g.18gb at 6"}));
}

TEST(MigPlanner, DisturbsAsFewAsItCanAndSaysWhom) {
  // A 4g is only at 0, where one of both has to go; the one with fewer users goes.
  const std::vector<Present> present = {{One("1g.18gb", 3), {"serve", "train"}},
                                        {One("1g.18gb", 5), {"other"}}};
  const Plan plan = Planned({H200(present)}, {{"a", 1, "4g.71gb"}});
  EXPECT_EQ(plan.score.placed, 1u);
  EXPECT_EQ(plan.score.disturbed, 2u);
  ASSERT_EQ(plan.gpus[0].moved.size(), 1u);
  EXPECT_EQ(plan.gpus[0].moved[0].from, One("1g.18gb", 3));
  EXPECT_EQ(plan.gpus[0].moved[0].users, (Strings{"serve", "train"}));
  EXPECT_EQ(std::ranges::count(plan.gpus[0].layout, One("1g.18gb", 5)), 1);
  EXPECT_EQ(std::ranges::count(plan.gpus[0].layout, plan.gpus[0].moved[0].to), 1);

  const Plan still = Planned({H200(present)}, {{"a", 1, "4g.71gb"}}, {.may_disturb = false});
  EXPECT_EQ(still.score.placed, 0u);
  EXPECT_EQ(still.unplaced[0].why, "4g.71gb needs placement 0; 0 is taken by 1g.18gb at 3");
}

TEST(MigPlanner, WouldRatherWasteSlicesThanTakeApartWhatIsThere) {
  // The idle 3g does for 30 GiB. A 1g.35gb would be half of it, but has room only where somebody
  // would have to move, or in the place of the 3g.
  const std::vector<Present> present = {
      {One("1g.18gb", 0), {"u"}}, {One("1g.18gb", 2), {"u"}}, {One("3g.71gb", 4)}};
  const Plan wide = Planned({H200(present)}, {{"a", 1, "", 30 * kGiB}});
  EXPECT_EQ(wide.score.disturbed, 0u);
  EXPECT_EQ(Name(Gpu("H200"), wide.gpus[0].given[0].instance), "3g.71gb at 4");
  EXPECT_TRUE(wide.gpus[0].given[0].existing);
  // For a second one the 3g is taken apart: nobody uses it.
  const Plan two = Planned({H200(present)}, {{"a", 2, "", 30 * kGiB}});
  EXPECT_EQ(two.score.placed, 2u);
  EXPECT_EQ(two.score.disturbed, 0u);
  EXPECT_EQ(two.score.destroyed, 1u);
}

TEST(MigPlanner, SaysWhyNoInstanceWouldDo) {
  const auto why = [](const char* gpu, const Want& want) {
    const Plan plan = Planned({{"GPU 0", &Gpu(gpu)}}, {want});
    return plan.unplaced.size() == 1 ? plan.unplaced[0].why : "";
  };
  EXPECT_EQ(why("H200", {"a", 1, "", 200 * kGiB}),
            "needs 200.0 GiB; the largest instance of H200, 7g.141gb, has 139.8 GiB");
  EXPECT_EQ(why("A100-40", {"a", 1, "", 0, 0.95}),
            "needs 95 % of the SMs; the largest instance of A100-40, 7g.40gb, has 91 %");
  EXPECT_EQ(why("B300", {"a", 1, "", 10 * kGiB}),
            "needs 10.0 GiB; how much memory instances of B300 have is in no document: name the profile");
  EXPECT_EQ(why("H200", {"a", 1, "3g.40gb"}),
            "H200 has no profile 3g.40gb; it has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, "
            "7g.141gb");
  EXPECT_EQ(why("B200", {"a", 1, "", 100 * kGiB}),
            "no profile of B200 has 100.0 GiB and 0 % of the SMs as far as is known");
}

TEST(MigPlanner, RefusesWhatItCannotPlan) {
  const auto error = [](const Result<Plan>& plan) { return plan ? "" : plan.error().ToString(); };
  EXPECT_EQ(error(MakePlan({}, {})), "there is no GPU to plan for");
  EXPECT_EQ(error(MakePlan({{"GPU 0", &Gpu("Thor")}}, {})),
            "where instances of Thor can be is in no document: only its driver knows; ask on a machine that "
            "has one");
  EXPECT_EQ(
      error(MakePlan({H200({{One("1g.18gb", 0)}, {One("3g.71gb", 0)}})}, {})),
      "GPU 0: what is said to be there cannot be: 1g.18gb at 0 needs memory slice 0; 3g.71gb at 0 is there");
  EXPECT_EQ(error(MakePlan({H200({{{0, 77}}})}, {})),
            "GPU 0: what is said to be there cannot be: H200 has no profile with id 77");
  EXPECT_EQ(error(MakePlan({H200()}, {{"a", 600}, {"b", 4294967295u}})),
            "4294967895 tenants are more than a plan can have (1000)");
}

TEST(MigPlanner, FillsOneGpuBeforeTheNext) {
  GpuState second = H200();
  second.name = "GPU 1";
  const Plan plan =
      Planned({H200(), second}, {{"a", 5, "1g.18gb"}, {"b", 1, "4g.71gb"}, {"c", 1, "3g.71gb"}});
  EXPECT_EQ(plan.score.placed, 7u);
  std::vector<size_t> sizes = {plan.gpus[0].layout.size(), plan.gpus[1].layout.size()};
  std::ranges::sort(sizes);
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 5}));
  // A GPU that is divided already takes the next, so that the other stays whole.
  second.present = {{One("1g.18gb", 6), {"u"}}};
  EXPECT_EQ(Planned({H200(), second}, {{"a", 2, "1g.18gb"}}).gpus[0].layout.size(), 0u);
  second.present.clear();
  const Plan full = Planned({H200(), second}, {{"a", 3, "7g.141gb"}});
  EXPECT_EQ(full.unplaced[0].why,
            "no room on any GPU; on GPU 0: 7g.141gb needs placement 0; 0 is taken by 7g.141gb at 0");
  EXPECT_FALSE(full.most_placed);
}

// GPUs that differ: each tenant goes where there is an instance for it.
TEST(MigPlanner, PlansForGpusOfSeveralKinds) {
  const Plan plan =
      Planned({H200(), {"GPU 1", &Gpu("A30")}}, {{"large", 1, "7g.141gb"}, {"small", 4, "", 5 * kGiB}});
  EXPECT_EQ(plan.score.placed, 5u);
  EXPECT_EQ(plan.gpus[0].layout.size(), 1u);
  EXPECT_EQ(plan.gpus[1].layout.size(), 4u);
}

TEST(MigPlanner, SaysIfItCouldNotLookAtEveryLayout) {
  gpu::MigModel model = Gpu("A30");
  model.memory_slices = model.compute_slices = model.max_instances = 20;
  model.profiles.resize(1);
  model.profiles[0].max_instances = 20;
  model.profiles[0].starts.clear();
  for (uint32_t start = 0; start < 20; ++start) model.profiles[0].starts.push_back(start);
  const std::vector<Present> present = {{{19, 14}, {"u"}}, {{18, 14}}};
  const Plan plan = Planned({{"GPU 0", &model, present}}, {{"a", 1, "14"}});
  EXPECT_FALSE(plan.most_placed);
  EXPECT_EQ(plan.score.placed, 1u);
  EXPECT_EQ(plan.score.disturbed, 0u);
  EXPECT_EQ(plan.score.destroyed, 0u);
}

TEST(MigPlanner, ComparesPlansByWhatMattersFirst) {
  const auto better = [](Score a, Score b) { return a.BetterThan(b) && !b.BetterThan(a); };
  EXPECT_TRUE(better({.placed = 2, .disturbed = 9}, {.placed = 1}));
  EXPECT_TRUE(
      better({.disturbed = 0, .destroyed = 4, .memory_slices = 8}, {.disturbed = 1, .memory_slices = 1}));
  EXPECT_TRUE(better({.destroyed = 1, .memory_slices = 5}, {.destroyed = 2}));
  EXPECT_TRUE(better({.compute_slices = 1, .special = 1}, {.compute_slices = 2}));
  EXPECT_TRUE(better({.special = 0, .created = 3}, {.special = 1}));
  EXPECT_TRUE(better({.memory_slices = 1, .compute_slices = 3}, {.memory_slices = 2}));
  EXPECT_TRUE(better({.created = 0, .open_places = 0}, {.created = 1, .open_places = 9}));
  EXPECT_TRUE(better({.open_places = 2}, {.open_places = 1}));
  EXPECT_FALSE(Score{}.BetterThan({}));
}

}  // namespace
}  // namespace gpumux::core::mig
