// SPDX-License-Identifier: Apache-2.0
#include "core/mig/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace gpumux::core::mig {

namespace {

std::vector<uint32_t> ProfilesOf(const Layout& layout) {
  std::vector<uint32_t> profiles;
  for (const Placed& each : layout) profiles.push_back(each.profile);
  std::ranges::sort(profiles);
  return profiles;
}

// One after the other, large ones first: the first that has no place says why.
Error WhyNone(const gpu::MigModel& model, std::vector<uint32_t> profiles) {
  std::ranges::stable_sort(profiles, std::ranges::greater(),
                           [&](uint32_t id) { return ProfileOf(model, id).memory_slices.value_or(0); });
  Layout layout;
  for (const uint32_t profile : profiles) {
    if (Status can = CanCreateSomewhere(model, layout, profile); !can) return can.error();
    layout.push_back({StartsLeft(model, layout, profile).front(), profile});
  }
  return {Code::kConflict, "they do not fit together", "see what does: gpumux mig plan --want"};
}

}  // namespace

Result<Layout> ChooseLayout(const gpu::MigModel& model, const std::vector<Present>& present,
                            std::vector<uint32_t> profiles) {
  if (Status known = CheckPlacementsKnown(model); !known) return tl::unexpected(known.error());
  for (const uint32_t id : profiles) {
    if (!model.FindProfile(id))
      return Fail(Code::kInvalid, fmt::format("{} has no profile {}", model.name, id));
  }
  std::ranges::sort(profiles);
  // Less is better.
  using Cost = std::tuple<size_t, size_t, int64_t, Layout>;
  std::optional<Cost> best;
  for (Layout& layout : AllLayouts(model)) {
    if (layout.size() != profiles.size() || ProfilesOf(layout) != profiles) continue;
    size_t in_use = 0, others = 0;
    for (const Present& each : present) {
      if (std::ranges::count(layout, each.instance) > 0) continue;
      ++(each.users.empty() ? others : in_use);
    }
    const auto open = static_cast<int64_t>(OpenPlaces(model, layout));
    Cost cost{in_use, others, -open, std::move(layout)};
    if (!best || cost < *best) best = std::move(cost);
  }
  if (!best) return tl::unexpected(WhyNone(model, profiles));
  return std::get<Layout>(std::move(*best));
}

}  // namespace gpumux::core::mig
