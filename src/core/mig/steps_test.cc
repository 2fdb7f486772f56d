// SPDX-License-Identifier: Apache-2.0
#include "core/mig/steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "core/mig/profile_name.h"

namespace gpumux::core::mig {
namespace {

const gpu::MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

Placed One(const gpu::MigModel& model, std::string_view name, uint32_t start) {
  return {start, *(*FindProfile(model, name))->id};
}

std::set<Placed> Set(const Layout& layout) { return {layout.begin(), layout.end()}; }

// What a driver would do with a step; false if there is nothing to destroy, or no room.
bool Apply(const std::set<std::set<Placed>>& legal, std::set<Placed>& state, const Step& step) {
  if (step.what == Step::What::kDestroy ? state.erase(step.instance) == 0
                                        : !state.insert(step.instance).second)
    return false;
  return legal.contains(state);
}

TEST(MigSteps, GoOnlyThroughLegalLayoutsAndNeverTouchWhatIsKept) {
  std::mt19937 random(8);
  for (const char* key : {"A30", "H200", "RTX-PRO-6000"}) {
    const gpu::MigModel& model = Gpu(key);
    const auto layouts = AllLayouts(model);
    std::set<std::set<Placed>> legal;
    for (const Layout& layout : layouts) legal.insert(Set(layout));
    for (int round = 0; round < 3000; ++round) {
      const std::set<Placed> before = Set(layouts[random() % layouts.size()]);
      const Layout& wanted = layouts[random() % layouts.size()];
      std::vector<Present> present;
      bool busy_goes = false;
      for (const Placed& instance : before) {
        const bool busy = random() % 4 == 0;
        present.push_back({instance, busy ? std::vector<std::string>{"train"} : std::vector<std::string>{}});
        busy_goes = busy_goes || (busy && std::ranges::count(wanted, instance) == 0);
      }
      std::ranges::shuffle(present, random);
      const auto change = StepsTo(model, present, wanted);
      ASSERT_EQ(change.has_value(), !busy_goes);
      if (!change) continue;
      std::set<Placed> state = before;
      for (const Step& step : change->steps) {
        ASSERT_TRUE(Apply(legal, state, step)) << ToString(model, step);
        for (const Placed& kept : change->kept) ASSERT_TRUE(state.contains(kept));
      }
      EXPECT_EQ(state, Set(wanted));
      std::set<Placed> in_both;
      std::ranges::set_intersection(before, state, std::inserter(in_both, in_both.end()));
      EXPECT_EQ(Set(change->kept), in_both);
      EXPECT_EQ(change->steps.size(), before.size() + wanted.size() - 2 * in_both.size());
      // Stopped anywhere, what was done can be undone.
      const size_t done = change->steps.empty() ? 0 : random() % (change->steps.size() + 1);
      state = before;
      for (size_t i = 0; i < done; ++i) ASSERT_TRUE(Apply(legal, state, change->steps[i]));
      for (const Step& step : Undo({change->steps.begin(), change->steps.begin() + static_cast<long>(done)}))
        ASSERT_TRUE(Apply(legal, state, step));
      EXPECT_EQ(state, before);
    }
  }
}

TEST(MigSteps, DestroyFirstAndCreateTheLargeOnesFirst) {
  const gpu::MigModel& h200 = Gpu("H200");
  const auto change = StepsTo(
      h200, {{One(h200, "1g.18gb", 6)}, {One(h200, "7g.141gb", 0)}},
      {One(h200, "1g.18gb", 6), One(h200, "1g.18gb", 5), One(h200, "1g.18gb", 4), One(h200, "4g.71gb", 0)});
  ASSERT_TRUE(change) << change.error().ToString();
  std::vector<std::string> steps;
  for (const Step& step : change->steps) steps.push_back(ToString(h200, step));
  EXPECT_EQ(steps, (std::vector<std::string>{"destroy 7g.141gb at 0", "create 4g.71gb at 0",
                                             "create 1g.18gb at 4", "create 1g.18gb at 5"}));
  EXPECT_EQ(change->kept, (Layout{One(h200, "1g.18gb", 6)}));
}

TEST(MigSteps, RefuseToRemoveWhatIsInUse) {
  const gpu::MigModel& h200 = Gpu("H200");
  const std::vector<Present> present = {{One(h200, "1g.18gb", 0), {"train", "pid 812 (python3)"}},
                                        {One(h200, "1g.18gb", 1), {"serve"}},
                                        {One(h200, "1g.18gb", 4), {"other"}}};
  const auto change = StepsTo(h200, present, {One(h200, "3g.71gb", 0), One(h200, "1g.18gb", 4)});
  ASSERT_FALSE(change);
  EXPECT_EQ(change.error().code, Code::kConflict);
  EXPECT_EQ(
      change.error().ToString(),
      "in use, and not in the new layout: 1g.18gb at 0 (train, pid 812 (python3)); 1g.18gb at 1 (serve); end "
      "what runs on them first");
  const auto one = StepsTo(h200, {present[0]}, {});
  EXPECT_EQ(one.error().ToString(),
            "in use, and not in the new layout: 1g.18gb at 0 (train, pid 812 (python3)); end what runs there "
            "first");
}

TEST(MigSteps, RefuseALayoutThatIsNotLegal) {
  const gpu::MigModel& h200 = Gpu("H200");
  const auto change = StepsTo(h200, {}, {One(h200, "1g.18gb", 0), One(h200, "3g.71gb", 0)});
  ASSERT_FALSE(change);
  EXPECT_EQ(change.error().code, Code::kConflict);
  EXPECT_EQ(StepsTo(h200, {}, {{0, 77}}).error().ToString(), "H200 has no profile with id 77");
}

}  // namespace
}  // namespace gpumux::core::mig
