// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "base/units.h"
#include "core/mig/planner.h"
#include "core/mig/testing/brute_force.h"

namespace gpumux::core::mig {
namespace {

#ifdef MIG_PLANNER_LONG
constexpr uint32_t kSeed = 77;
constexpr int kRounds = 400;
#else
constexpr uint32_t kSeed = 8;
constexpr int kRounds = 8;
#endif

const gpu::MigModel& Gpu(std::string_view key) { return **gpu::FindMigModel(key); }

class Requests {
 public:
  explicit Requests(uint32_t seed) : random_(seed) {}

  uint32_t Below(uint32_t n) { return random_() % n; }

  std::vector<Want> Wants(const gpu::MigModel& model, uint32_t tenants) {
    std::vector<Want> wants;
    for (uint32_t left = 1 + Below(tenants); left > 0;) {
      Want want{"w" + std::to_string(wants.size()), 1 + Below(left)};
      left -= want.count;
      const gpu::MigProfile& like = model.profiles[Below(static_cast<uint32_t>(model.profiles.size()))];
      if (Below(3) == 0) {
        want.profile = like.name;
      } else {
        // Of all sizes: from a part of the smallest instance to more than the largest has.
        want.bytes = *like.bytes / 100 * (20 + Below(90));
        if (Below(2) == 0) want.share = ShareOf(model, like) * (0.3 + 0.1 * Below(8));
        want.shares = Below(2) == 0;
        if (want.shares) want.bytes /= 1 + Below(4);
      }
      wants.push_back(want);
    }
    return wants;
  }

  std::vector<Present> Some(const std::vector<Layout>& layouts) {
    std::vector<Present> present;
    if (Below(2) == 0) return present;
    const Layout& layout = layouts[Below(static_cast<uint32_t>(layouts.size()))];
    for (const Placed& instance : layout) {
      if (Below(2) == 0) continue;
      Present one{instance};
      for (uint32_t users = Below(3); users > 0; --users) one.users.push_back("u" + std::to_string(users));
      present.push_back(one);
    }
    return present;
  }

 private:
  std::mt19937 random_;
};

std::string Told(const gpu::MigModel& model, const std::vector<Present>& present,
                 const std::vector<Want>& wants) {
  std::string out = model.key + ":";
  for (const Present& one : present)
    out += " " + Name(model, one.instance) + " x" + std::to_string(one.users.size());
  out += " |";
  for (const Want& want : wants)
    out += " " + std::to_string(want.count) + "x{" + want.profile + " " + FormatBytes(want.bytes) + " " +
           std::to_string(want.share) + (want.shares ? " shares}" : "}");
  return out;
}

// Whether the plan is what it says: legal, nobody loses an instance, and the score its own.
void CheckPlan(const GpuState& gpu, const std::vector<Want>& wants, const Plan& plan) {
  const GpuPlan& one = plan.gpus[0];
  EXPECT_TRUE(CheckLayout(*gpu.model, one.layout));
  std::vector<uint32_t> left;
  for (const Want& want : wants) left.push_back(want.count);
  std::set<Placed> used;
  for (const Given& given : one.given) {
    EXPECT_TRUE(used.insert(given.instance).second);
    EXPECT_EQ(std::ranges::count(one.layout, given.instance), 1);
    for (const size_t want : given.whom) {
      ASSERT_GT(left[want], 0u);
      --left[want];
    }
  }
  for (const Present& present : gpu.present) {
    if (present.users.empty()) continue;
    const bool stays = std::ranges::count(one.layout, present.instance) > 0;
    const auto moved = std::ranges::find(one.moved, present.instance, &Moved::from);
    ASSERT_EQ(stays, moved == one.moved.end());
    const Placed now = stays ? present.instance : moved->to;
    EXPECT_EQ(now.profile, present.instance.profile);
    EXPECT_TRUE(used.insert(now).second) << "given to two";
  }
  uint32_t unplaced = 0;
  for (const Unplaced& no : plan.unplaced) {
    EXPECT_EQ(no.count, left[no.want]);
    EXPECT_FALSE(no.why.empty());
    unplaced += no.count;
  }
  EXPECT_EQ(unplaced, std::accumulate(left.begin(), left.end(), 0u));
  EXPECT_TRUE(plan.most_placed);
}

TEST(MigPlannerProperty, IsNeverWorseThanEveryOtherPlanForOneGpu) {
  Requests requests(20261130);
  for (const auto& [key, rounds, tenants] :
       {std::tuple("A30", 1700, 5u), std::tuple("H200", 150, 3u), std::tuple("RTX-PRO-6000", 150, 3u)}) {
    const gpu::MigModel& model = Gpu(key);
    const auto layouts = AllLayouts(model);
    testing::EveryPlan every(model, testing::EveryLayout(model).found);
    for (int round = 0; round < rounds; ++round) {
      const auto wants = requests.Wants(model, tenants);
      const auto present = requests.Some(layouts);
      const bool may_disturb = requests.Below(4) != 0;
      const GpuState gpu{"GPU 0", &model, present};
      const auto plan = MakePlan({gpu}, wants, {may_disturb});
      ASSERT_TRUE(plan) << plan.error().ToString();
      ASSERT_EQ(plan->gpus.size(), 1u);
      const Score best = every.Best(present, wants, may_disturb);
      EXPECT_EQ(plan->score, best) << Told(model, present, wants) << " placed " << plan->score.placed
                                   << " of " << best.placed << ", " << plan->score.memory_slices
                                   << " slices, not " << best.memory_slices;
      CheckPlan(gpu, wants, *plan);
      if (HasFailure()) return;
    }
  }
}

// Instances that are known to fit, because they are those of eight layouts; some of them
// in use already, and the others wanted by name or by what they have.
struct Constructed {
  std::vector<GpuState> gpus;
  std::vector<Want> wants;
  uint32_t tenants = 0;
};

Constructed Construct(Requests& requests, const gpu::MigModel& model, const std::vector<Layout>& layouts) {
  Constructed made;
  std::map<std::pair<uint32_t, bool>, uint32_t> wanted;  // by id, and whether by name
  for (int i = 0; i < 8; ++i) {
    GpuState gpu{"GPU " + std::to_string(i), &model};
    const bool in_use = requests.Below(4) == 0;
    for (const Placed& instance : layouts[requests.Below(static_cast<uint32_t>(layouts.size()))]) {
      if (in_use && requests.Below(3) == 0) {
        gpu.present.push_back({instance, {"u"}});
      } else {
        ++wanted[{instance.profile, requests.Below(2) == 0}];
        ++made.tenants;
      }
    }
    made.gpus.push_back(gpu);
  }
  for (const auto& [key, count] : wanted) {
    const gpu::MigProfile& profile = ProfileOf(model, key.first);
    Want want{profile.name, count};
    if (key.second) {
      want.profile = profile.name;
    } else {
      want.bytes = *profile.bytes;
      want.share = ShareOf(model, profile);
    }
    made.wants.push_back(want);
  }
  return made;
}

// Full ones: there is no slack.
std::vector<Layout> FullLayouts(const gpu::MigModel& model) {
  std::vector<Layout> layouts = AllLayouts(model);
  std::erase_if(layouts, [&](const Layout& layout) { return OpenPlaces(model, layout) > 0; });
  return layouts;
}

TEST(MigPlannerProperty, PlacesOnEightGpusAllThatIsKnownToFit) {
  Requests requests(kSeed);
  for (const char* key : {"H200", "A30", "RTX-PRO-6000"}) {
    const gpu::MigModel& model = Gpu(key);
    const auto layouts = FullLayouts(model);
    for (int round = 0; round < kRounds; ++round) {
      const Constructed made = Construct(requests, model, layouts);
      const auto plan = MakePlan(made.gpus, made.wants, {.may_disturb = false});
      ASSERT_TRUE(plan) << plan.error().ToString();
      EXPECT_EQ(plan->score.placed, made.tenants) << key << ", round " << round;
      EXPECT_EQ(plan->score.disturbed, 0u);
      EXPECT_TRUE(plan->most_placed);
      for (const GpuPlan& gpu : plan->gpus) EXPECT_TRUE(CheckLayout(model, gpu.layout));
    }
  }
}

#ifdef MIG_PLANNER_LONG
// With more wanted than fits, the most that could be placed is not known, but not less than without the
// others.
TEST(MigPlannerProperty, PlacesOnEightGpusNearlyAsManyWhenMoreIsWanted) {
  Requests requests(kSeed);
  uint32_t tenants = 0, placed = 0;
  for (const char* key : {"H200", "A30", "RTX-PRO-6000"}) {
    const gpu::MigModel& model = Gpu(key);
    const auto layouts = FullLayouts(model);
    for (int round = 0; round < kRounds / 16; ++round) {
      Constructed made = Construct(requests, model, layouts);
      for (int more = 0; more < 3; ++more) {
        const auto& profile = model.profiles[requests.Below(static_cast<uint32_t>(model.profiles.size()))];
        made.wants.push_back({"more", 1 + requests.Below(3), profile.name});
      }
      const auto plan = MakePlan(made.gpus, made.wants, {.may_disturb = false});
      ASSERT_TRUE(plan) << plan.error().ToString();
      tenants += made.tenants;
      placed += plan->score.placed;
      EXPECT_GE(plan->score.placed * 100, made.tenants * 90) << key << ", round " << round;
    }
  }
  EXPECT_GE(placed, tenants);
}
#endif

}  // namespace
}  // namespace gpumux::core::mig
