// SPDX-License-Identifier: Apache-2.0
#include "core/mig/one_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace gpumux::core::mig {
namespace {

using gpu::MigProfile;

bool Has(const Layout& layout, Placed instance) { return std::ranges::count(layout, instance) > 0; }

const Present* FindPresent(const GpuState& gpu, Placed instance) {
  const auto found = std::ranges::find(gpu.present, instance, &Present::instance);
  return found == gpu.present.end() ? nullptr : &*found;
}

Layout LayoutOf(const GpuState& gpu) {
  Layout layout;
  for (const Present& present : gpu.present) layout.push_back(present.instance);
  std::ranges::sort(layout);
  return layout;
}

Status CheckPresent(const GpuState& gpu) {
  Status status = CheckLayout(*gpu.model, LayoutOf(gpu));
  if (status) return {};
  if (status.error().code == Code::kUnsupported) return status;
  return Fail(Code::kInvalid,
              fmt::format("{}: what is said to be there cannot be: {}", gpu.name, status.error().message));
}

// Seats that are alike are exchangeable: tenants do not care where an instance is.
std::vector<std::pair<bool, uint32_t>> KeyOf(const std::vector<Seat>& seats) {
  std::vector<std::pair<bool, uint32_t>> key;
  for (const Seat& seat : seats) key.push_back({seat.existing, seat.instance.profile});
  return key;
}

}  // namespace

// Instances in use that are not in `layout` take new ones of their profile, which would be of no other use;
// else idle ones. nullopt: there are not enough.
std::optional<OneGpu::Way> OneGpu::WayTo(const Layout& layout, const GpuState& gpu) const {
  Way way;
  way.layout = layout;
  std::vector<const Present*> homeless;
  for (const Present& present : gpu.present) {
    const bool stays = Has(layout, present.instance);
    if (!stays && !present.users.empty()) homeless.push_back(&present);
    way.cost.destroyed += !stays;
  }
  for (const Placed& instance : layout) {
    const Present* present = FindPresent(gpu, instance);
    way.cost.created += !present;
    if (!present || present->users.empty()) way.seats.push_back({instance, present != nullptr});
  }
  std::ranges::sort(way.seats, {}, [](const Seat& seat) {
    return std::tuple(seat.existing, seat.instance.profile, seat.instance.start);
  });
  for (const Present* present : homeless) {
    const auto seat = std::ranges::find(way.seats, present->instance.profile,
                                        [](const Seat& one) { return one.instance.profile; });
    if (seat == way.seats.end()) return std::nullopt;
    way.moved.push_back({present->instance, seat->instance, present->users});
    way.cost.disturbed += static_cast<uint32_t>(present->users.size());
    way.seats.erase(seat);
  }
  return way;
}

Result<OneGpu> OneGpu::Of(const GpuState& gpu, const PlanOptions& options) {
  if (const Status status = CheckPresent(gpu); !status) return tl::unexpected(status.error());
  OneGpu one(gpu);
  std::map<std::vector<std::pair<bool, uint32_t>>, Way> best;
  auto layouts = AllLayouts(*gpu.model);
  one.every_layout_ = layouts.size() < kMostLayouts;
  // The one that needs no change is among those that are looked at, whatever else is not.
  if (!one.every_layout_) layouts.push_back(LayoutOf(gpu));
  for (const Layout& layout : layouts) {
    auto way = one.WayTo(layout, gpu);
    if (!way || (way->cost.disturbed > 0 && !options.may_disturb)) continue;
    way->cost.open_places = OpenPlaces(*gpu.model, layout);
    const auto [place, is_new] = best.try_emplace(KeyOf(way->seats), *way);
    if (!is_new && way->cost.BetterThan(place->second.cost)) place->second = std::move(*way);
  }
  for (auto& [key, way] : best) one.ways_.push_back(std::move(way));
  return one;
}

GpuPlan OneGpu::Best(const std::vector<Want>& wants, const std::vector<uint32_t>& counts) const {
  const uint32_t tenants = std::accumulate(counts.begin(), counts.end(), 0u);
  GpuPlan best;
  bool any = false, exact = true;
  for (const Way& way : ways_) {
    const auto made = std::ranges::count(way.seats, false, &Seat::existing);
    if (static_cast<uint32_t>(made) > tenants) continue;
    const auto seating = SeatTenants(*model_, way.seats, wants, counts);
    if (!seating) continue;
    exact = exact && seating->exact;
    GpuPlan plan{way.layout, {}, way.moved, way.cost, true};
    plan.score.placed = seating->placed;
    for (size_t i = 0; i < way.seats.size(); ++i) {
      if (seating->whom[i].empty()) continue;
      const MigProfile& profile = ProfileOf(*model_, way.seats[i].instance.profile);
      plan.score.memory_slices += *profile.memory_slices;
      plan.score.compute_slices += profile.compute_slices;
      plan.score.special += profile.attribute != gpu::MigAttribute::kNone;
      plan.given.push_back({way.seats[i].instance, seating->whom[i], way.seats[i].existing});
    }
    if (any && !plan.score.BetterThan(best.score)) continue;
    best = std::move(plan);
    any = true;
  }
  best.exact = exact && every_layout_;
  std::ranges::sort(best.given, {}, &Given::instance);
  return best;
}

}  // namespace gpumux::core::mig
