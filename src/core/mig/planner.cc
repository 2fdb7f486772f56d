// SPDX-License-Identifier: Apache-2.0
#include "core/mig/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "core/mig/one_gpu.h"

namespace gpumux::core::mig {
namespace {

using gpu::MigProfile;
using Counts = std::vector<uint32_t>;  // tenants, by want

// Rounds of moving a tenant out of another's way. Each places one more, so that few are needed.
constexpr int kMostRounds = 200;
constexpr size_t kObviousOrders = 3;
// Orders that are tried when the obvious ones leave somebody out.
constexpr int kShuffledOrders = 40;
constexpr size_t kShuffleReach = 12;

// Several GPUs, filled one tenant after the other.
class Node {
 public:
  Node(const std::vector<GpuState>& gpus, const std::vector<Want>& wants) : gpus_(gpus), wants_(wants) {}

  Status Open(const PlanOptions& options) {
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      alike_.push_back(FirstAlike(gpu));
      if (alike_[gpu] != gpu) continue;
      auto one = OneGpu::Of(gpus_[gpu], options);
      if (!one) return tl::unexpected(one.error());
      planners_.emplace(gpu, std::move(*one));
    }
    return {};
  }

  // Fills the GPUs in this order of tenants; what is not placed stays in `left`.
  void Fill(const std::vector<size_t>& order) {
    on_.assign(gpus_.size(), Counts(wants_.size()));
    left_.assign(wants_.size(), 0);
    for (const size_t want : order) {
      if (const auto gpu = BestGpuFor(want)) {
        ++on_[*gpu][want];
      } else {
        ++left_[want];
      }
    }
  }

  // As long as it helps: a tenant that is left takes the place of another, which goes elsewhere.
  void Improve() {
    for (int round = 0; round < kMostRounds; ++round) {
      bool better = false;
      for (size_t want = 0; want < wants_.size() && !better; ++want)
        better = left_[want] > 0 && MakeRoom(want);
      if (!better) return;
    }
  }

  Score Total() {
    Score total;
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) total += On(gpu, on_[gpu]).score;
    return total;
  }
  const std::vector<Counts>& on() const { return on_; }
  const Counts& left() const { return left_; }

  const GpuPlan& On(size_t gpu, const Counts& counts) {
    const auto key = std::pair(alike_[gpu], counts);
    auto known = known_.find(key);
    if (known == known_.end())
      known = known_.emplace(key, planners_.at(alike_[gpu]).Best(wants_, counts)).first;
    return known->second;
  }

 private:
  size_t FirstAlike(size_t gpu) const {
    for (size_t other = 0; other < gpu; ++other) {
      if (gpus_[other].model == gpus_[gpu].model && gpus_[other].present.empty() &&
          gpus_[gpu].present.empty())
        return other;
    }
    return gpu;
  }

  bool HoldsAll(size_t gpu, const Counts& counts) {
    return On(gpu, counts).score.placed == std::accumulate(counts.begin(), counts.end(), 0u);
  }

  // Where one more costs least: nobody disturbed, little made, and then the GPU on which least is left
  // open, so that others stay whole.
  std::optional<size_t> BestGpuFor(size_t want) {
    std::optional<size_t> best;
    std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> best_cost;
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      Counts counts = on_[gpu];
      ++counts[want];
      if (!HoldsAll(gpu, counts)) continue;
      const Score before = On(gpu, on_[gpu]).score, after = On(gpu, counts).score;
      // The layout of a GPU can become a better one with one tenant more: differences are signed, counted
      // from above.
      const auto more = [](uint32_t a, uint32_t b) { return 1000 + a - b; };
      const std::tuple cost(more(after.disturbed, before.disturbed), more(after.destroyed, before.destroyed),
                            more(after.memory_slices, before.memory_slices), after.open_places);
      if (best && cost >= best_cost) continue;
      best = gpu;
      best_cost = cost;
    }
    return best;
  }

  bool MakeRoom(size_t want) {
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      for (size_t out = 0; out < wants_.size(); ++out) {
        if (out == want || on_[gpu][out] == 0) continue;
        Counts swapped = on_[gpu];
        --swapped[out];
        ++swapped[want];
        if (!HoldsAll(gpu, swapped)) continue;
        const Counts before = on_[gpu];
        on_[gpu] = swapped;
        if (const auto other = BestGpuFor(out)) {
          ++on_[*other][out];
          --left_[want];
          return true;
        }
        on_[gpu] = before;
      }
    }
    return false;
  }

  // A tenant is left out where two or more that are left have room in its place.
  bool GiveUpOneForTwo() {
    if (std::accumulate(left_.begin(), left_.end(), 0u) < 2) return false;
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      for (size_t out = 0; out < wants_.size(); ++out) {
        if (on_[gpu][out] == 0) continue;
        Counts counts = on_[gpu], left = left_;
        --counts[out];
        uint32_t taken = 0;
        for (size_t want = 0; want < wants_.size(); ++want) {
          for (; want != out && left[want] > 0; --left[want], ++taken) {
            ++counts[want];
            if (HoldsAll(gpu, counts)) continue;
            --counts[want];
            break;
          }
        }
        if (taken < 2) continue;
        on_[gpu] = counts;
        left_ = left;
        ++left_[out];
        return true;
      }
    }
    return false;
  }

  const std::vector<GpuState>& gpus_;
  const std::vector<Want>& wants_;
  std::vector<size_t> alike_;  // by GPU: the first that is as it
  std::map<size_t, OneGpu> planners_;
  std::map<std::pair<size_t, Counts>, GpuPlan> known_;
  std::vector<Counts> on_;
  Counts left_;
};

// The size of the smallest instance that would do, of the GPU on which it is largest.
std::tuple<uint32_t, uint32_t> SizeFor(const std::vector<GpuState>& gpus, const Want& want) {
  std::tuple<uint32_t, uint32_t> size;
  for (const GpuState& gpu : gpus) {
    const MigProfile* profile = SmallestFor(*gpu.model, want);
    if (profile) size = std::max(size, std::tuple(*profile->memory_slices, profile->compute_slices));
  }
  return size;
}

// Orders in which tenants are tried: large ones first, by memory and by compute. Sizes of memory divide
// each other, so that the first is nearly always right; the others are for compute slices and for GPUs that
// are in use.
std::vector<std::vector<size_t>> Orders(const std::vector<GpuState>& gpus, const std::vector<Want>& wants) {
  std::vector<size_t> tenants;
  for (size_t want = 0; want < wants.size(); ++want) tenants.insert(tenants.end(), wants[want].count, want);
  auto by_memory = tenants, by_compute = tenants, small_first = tenants;
  std::vector<std::tuple<uint32_t, uint32_t>> sizes;
  for (const Want& want : wants) sizes.push_back(SizeFor(gpus, want));
  std::ranges::stable_sort(by_memory, std::greater(), [&](size_t want) { return sizes[want]; });
  std::ranges::stable_sort(by_compute, std::greater(), [&](size_t want) {
    return std::pair(std::get<1>(sizes[want]), std::get<0>(sizes[want]));
  });
  std::ranges::stable_sort(small_first, std::less(), [&](size_t want) { return sizes[want]; });
  std::vector<std::vector<size_t>> orders = {by_memory, by_compute, small_first};
  // Then the first with neighbours changed at random, the same ones each time.
  std::minstd_rand random(1);
  for (int i = 0; i < kShuffledOrders && !by_memory.empty(); ++i) {
    auto order = by_memory;
    for (size_t at = 0; at + 1 < order.size(); ++at) {
      const size_t other = std::min(order.size() - 1, at + random() % kShuffleReach);
      std::swap(order[at], order[other]);
    }
    orders.push_back(order);
  }
  return orders;
}

// Of a tenant that no GPU has room for.
std::string WhyNotPlaced(const std::vector<GpuState>& gpus, const std::vector<GpuPlan>& plans,
                         const Want& want) {
  std::string none;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const MigProfile* profile = SmallestFor(*gpus[i].model, want);
    if (!profile) {
      if (none.empty()) none = WhyNone(*gpus[i].model, want);
      continue;
    }
    const Status status = CanCreateSomewhere(*gpus[i].model, plans[i].layout, *profile->id);
    const std::string why =
        status ? fmt::format("{} has no room left", gpus[i].name) : status.error().message;
    return gpus.size() == 1 ? why : fmt::format("no room on any GPU; on {}: {}", gpus[i].name, why);
  }
  return none;
}

Status Check(const std::vector<GpuState>& gpus, const std::vector<Want>& wants) {
  if (gpus.empty()) return Fail(Code::kInvalid, "there is no GPU to plan for");
  uint64_t tenants = 0;
  for (const Want& want : wants) tenants += want.count;
  if (tenants > kMostTenants)
    return Fail(Code::kInvalid,
                fmt::format("{} tenants are more than a plan can have ({})", tenants, kMostTenants));
  return {};
}

// One GPU takes all: it says itself which it places.
void PlanOne(Node& node, const std::vector<Want>& wants, Plan& plan, Counts& left) {
  Counts all;
  for (const Want& want : wants) all.push_back(want.count);
  plan.gpus = {node.On(0, all)};
  left = all;
  for (const Given& given : plan.gpus[0].given) {
    for (const size_t want : given.whom) --left[want];
  }
  plan.most_placed = plan.gpus[0].exact;
}

void PlanSeveral(Node& node, const std::vector<GpuState>& gpus, const std::vector<Want>& wants, Plan& plan,
                 Counts& left) {
  std::optional<Score> best;
  std::vector<Counts> on;
  uint32_t tenants = 0;
  for (const Want& want : wants) tenants += want.count;
  size_t tried = 0;
  for (const auto& order : Orders(gpus, wants)) {
    if (++tried > kObviousOrders && best->placed == tenants) break;
    node.Fill(order);
    node.Improve();
    const Score score = node.Total();
    if (!best || score.BetterThan(*best)) {
      best = score;
      on = node.on();
      left = node.left();
    }
  }
  for (size_t gpu = 0; gpu < gpus.size(); ++gpu) plan.gpus.push_back(node.On(gpu, on[gpu]));
  plan.most_placed = std::ranges::all_of(left, [](uint32_t count) { return count == 0; });
}

}  // namespace

bool Score::BetterThan(const Score& other) const {
  const auto key = [](const Score& s) {
    return std::tuple(~s.placed, s.disturbed, s.destroyed, s.memory_slices, s.compute_slices, s.special,
                      s.created, ~s.open_places);
  };
  return key(*this) < key(other);
}

Score& Score::operator+=(const Score& other) {
  placed += other.placed;
  disturbed += other.disturbed;
  memory_slices += other.memory_slices;
  compute_slices += other.compute_slices;
  special += other.special;
  destroyed += other.destroyed;
  created += other.created;
  open_places += other.open_places;
  return *this;
}

Result<Plan> MakePlan(const std::vector<GpuState>& gpus, const std::vector<Want>& wants,
                      const PlanOptions& options) {
  if (const Status status = Check(gpus, wants); !status) return tl::unexpected(status.error());
  Node node(gpus, wants);
  if (const Status status = node.Open(options); !status) return tl::unexpected(status.error());
  Plan plan;
  Counts left;
  if (gpus.size() == 1) {
    PlanOne(node, wants, plan, left);
  } else {
    PlanSeveral(node, gpus, wants, plan, left);
  }
  for (const GpuPlan& gpu : plan.gpus) plan.score += gpu.score;
  for (size_t want = 0; want < wants.size(); ++want) {
    if (left[want] > 0)
      plan.unplaced.push_back({want, left[want], WhyNotPlaced(gpus, plan.gpus, wants[want])});
  }
  return plan;
}

}  // namespace gpumux::core::mig
