// SPDX-License-Identifier: Apache-2.0
#include "core/mig/geometry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/mig/profile_name.h"

namespace gpumux::core::mig {
namespace {

using gpu::MigAttribute;
using gpu::MigModel;
using gpu::MigProfile;

// "0", "0 or 4", "0, 2 or 4".
std::string List(const std::vector<uint32_t>& numbers, const char* last) {
  if (numbers.size() < 2) return fmt::format("{}", fmt::join(numbers, ""));
  const auto end = numbers.end() - 1;
  return fmt::format("{} {} {}", fmt::join(numbers.begin(), end, ", "), last, *end);
}

uint32_t SizeOf(const MigModel& model, Placed instance) {
  return model.FindProfile(instance.profile)->memory_slices.value_or(0);
}

bool Overlap(const MigModel& model, Placed a, Placed b) {
  return a.start < b.start + SizeOf(model, b) && b.start < a.start + SizeOf(model, a);
}

Layout InTheWay(const MigModel& model, const Layout& layout, Placed instance) {
  Layout found;
  for (const Placed& other : layout) {
    if (Overlap(model, other, instance)) found.push_back(other);
  }
  std::ranges::sort(found);
  return found;
}

uint32_t ComputeSlices(const MigModel& model, const Layout& layout) {
  uint32_t sum = 0;
  for (const Placed& instance : layout) sum += model.FindProfile(instance.profile)->compute_slices;
  return sum;
}

bool HasMedia(const MigProfile& profile) { return profile.attribute != MigAttribute::kNoMe; }

// Why an instance cannot be beside others, wherever it is. Words come later: most
// answers to "does it fit?" are asked for by the thousand.
struct Obstacle {
  enum class Kind {
    kNone,
    kOnlyOne,
    kNeedsAllMedia,
    kMediaTaken,
    kComputeSlices,
    kMostOfProfile,
    kMostOfGpu
  };
  Kind kind = Kind::kNone;
  Placed other = {};
};
using Kind = Obstacle::Kind;

// The rules of the engines for video, JPEG and optical flow.
Obstacle MediaObstacle(const MigModel& model, const Layout& layout, const MigProfile& profile) {
  for (const Placed& instance : layout) {
    const MigProfile& other = ProfileOf(model, instance.profile);
    const auto both = [&](MigAttribute a) { return profile.attribute == a && other.attribute == a; };
    if (both(MigAttribute::kMe) || both(MigAttribute::kMeAll)) return {Kind::kOnlyOne, instance};
    if (profile.attribute == MigAttribute::kMeAll && HasMedia(other)) return {Kind::kNeedsAllMedia, instance};
    if (other.attribute == MigAttribute::kMeAll && HasMedia(profile)) return {Kind::kMediaTaken, instance};
  }
  return {};
}

// What is only counted.
Obstacle CountObstacle(const MigModel& model, const Layout& layout, const MigProfile& profile) {
  if (ComputeSlices(model, layout) + profile.compute_slices > model.compute_slices)
    return {Kind::kComputeSlices};
  const auto same = std::ranges::count(layout, *profile.id, &Placed::profile);
  if (static_cast<uint32_t>(same) >= profile.max_instances) return {Kind::kMostOfProfile};
  if (layout.size() >= model.max_instances) return {Kind::kMostOfGpu};
  return {};
}

tl::unexpected<Error> Conflict(std::string message, std::string hint = "") {
  return Fail(Code::kConflict, std::move(message), std::move(hint));
}

// The same size without media engines, as a hint; "" if this GPU has none.
std::string WithoutMedia(const MigModel& model, const MigProfile& profile) {
  for (const MigProfile& other : model.profiles) {
    if (other.attribute == MigAttribute::kNoMe && other.memory_slices == profile.memory_slices)
      return fmt::format("{} has none", other.name);
  }
  return "";
}

Status InWords(const MigModel& model, const Layout& layout, const MigProfile& profile, Obstacle obstacle) {
  const auto other = [&] { return Name(model, obstacle.other); };
  switch (obstacle.kind) {
    case Kind::kNone:
      return {};
    case Kind::kOnlyOne:
      return Conflict(fmt::format("{} needs to be the only instance with {}; {} has it", profile.name,
                                  gpu::MigAttributeSuffix(profile.attribute), other()));
    case Kind::kNeedsAllMedia:
      return Conflict(fmt::format("{} needs all media engines; {} has some of them", profile.name, other()),
                      WithoutMedia(model, ProfileOf(model, obstacle.other.profile)));
    case Kind::kMediaTaken:
      return Conflict(fmt::format("{} needs media engines; {} has all of them", profile.name, other()),
                      WithoutMedia(model, profile));
    case Kind::kComputeSlices:
      return Conflict(fmt::format("{} needs compute slices: {}; {} of {} are taken", profile.name,
                                  profile.compute_slices, ComputeSlices(model, layout),
                                  model.compute_slices));
    case Kind::kMostOfProfile:
      return Conflict(
          fmt::format("{} is on the GPU as often as it can be: {}", profile.name, profile.max_instances));
    case Kind::kMostOfGpu:
      return Conflict(
          fmt::format("{} can have {} instances at most, and has as many", model.key, model.max_instances));
  }
  return {};
}

bool Free(const MigModel& model, const Layout& layout, Placed instance) {
  return std::ranges::none_of(layout, [&](Placed other) { return Overlap(model, other, instance); });
}

// CanCreate without the words, for ids and a start that are known to be right.
bool Possible(const MigModel& model, const Layout& layout, const MigProfile& profile, uint32_t start) {
  return Free(model, layout, {start, *profile.id}) &&
         MediaObstacle(model, layout, profile).kind == Kind::kNone &&
         CountObstacle(model, layout, profile).kind == Kind::kNone;
}

Status CheckIds(const MigModel& model, const Layout& layout) {
  for (const Placed& instance : layout) {
    if (model.FindProfile(instance.profile)) continue;
    return Fail(Code::kInvalid, fmt::format("{} has no profile with id {}", model.key, instance.profile));
  }
  return {};
}

Result<const MigProfile*> Known(const MigModel& model, uint32_t id) {
  if (const Status status = CheckPlacementsKnown(model); !status) return tl::unexpected(status.error());
  if (const Status status = CheckIds(model, {{0, id}}); !status) return tl::unexpected(status.error());
  return model.FindProfile(id);
}

std::string Names(const MigModel& model, const Layout& instances) {
  std::vector<std::string> names;
  for (const Placed& instance : instances) names.push_back(Name(model, instance));
  if (names.size() < 2) return names.empty() ? "" : names[0];
  return fmt::format("{} and {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

// "0 is taken by 1g.18gb at 0, 4 by 2g.35gb at 4": every start, those with the same instances in the way
// together.
std::string WhoIsInTheWay(const MigModel& model, const Layout& layout, const MigProfile& profile) {
  std::vector<std::pair<Layout, std::vector<uint32_t>>> groups;
  for (const uint32_t start : profile.starts) {
    const Layout in_the_way = InTheWay(model, layout, {start, *profile.id});
    if (groups.empty() || groups.back().first != in_the_way) groups.push_back({in_the_way, {}});
    groups.back().second.push_back(start);
  }
  std::string out;
  for (const auto& [instances, starts] : groups) {
    const char* verb = !out.empty() ? "" : starts.size() == 1 ? " is taken" : " are taken";
    if (!out.empty()) out += ", ";
    out += fmt::format("{}{} by {}", List(starts, "and"), verb, Names(model, instances));
  }
  return out;
}

}  // namespace

const MigProfile& ProfileOf(const MigModel& model, uint32_t id) { return *model.FindProfile(id); }

std::string Name(const MigModel& model, Placed instance) {
  const MigProfile* profile = model.FindProfile(instance.profile);
  return profile ? At(*profile, instance.start)
                 : fmt::format("profile {} at {}", instance.profile, instance.start);
}

Status CheckPlacementsKnown(const MigModel& model) {
  const auto possible = [&](const MigProfile& profile) {
    return *profile.memory_slices > 0 && std::ranges::all_of(profile.starts, [&](uint32_t start) {
      return start < kMostSlices && start + *profile.memory_slices <= *model.memory_slices;
    });
  };
  if (model.placements_known()) {
    if (*model.memory_slices <= kMostSlices && std::ranges::all_of(model.profiles, possible)) return {};
    return Fail(Code::kUnsupported,
                fmt::format("what the driver tells of placements on {} cannot be", model.key));
  }
  return Fail(Code::kUnsupported,
              fmt::format("where instances of {} can be is in no document: only its driver knows", model.key),
              "ask on a machine that has one");
}

std::vector<uint32_t> StartsLeft(const MigModel& model, const Layout& layout, uint32_t id) {
  std::vector<uint32_t> left;
  const auto profile = Known(model, id);
  if (!profile || !CheckIds(model, layout)) return left;
  std::ranges::copy_if((*profile)->starts, std::back_inserter(left),
                       [&](uint32_t start) { return Possible(model, layout, **profile, start); });
  return left;
}

uint32_t OpenPlaces(const MigModel& model, const Layout& layout) {
  if (!CheckIds(model, layout)) return 0;
  size_t open = 0;
  for (const MigProfile& profile : model.profiles) {
    open += static_cast<size_t>(std::ranges::count_if(
        profile.starts, [&](uint32_t start) { return Possible(model, layout, profile, start); }));
  }
  return static_cast<uint32_t>(open);
}

uint32_t RemainingCapacity(const MigModel& model, const Layout& layout, uint32_t id) {
  Layout all = layout;
  // Instances of one size: taking the first place that is left never costs a second one.
  for (auto left = StartsLeft(model, all, id); !left.empty(); left = StartsLeft(model, all, id))
    all.push_back({left[0], id});
  return static_cast<uint32_t>(all.size() - layout.size());
}

Status CanCreateSomewhere(const MigModel& model, const Layout& layout, uint32_t id) {
  const auto found = Known(model, id);
  if (!found) return tl::unexpected(found.error());
  const MigProfile& profile = **found;
  if (const Status status = CheckIds(model, layout); !status) return status;
  if (const Obstacle media = MediaObstacle(model, layout, profile); media.kind != Kind::kNone)
    return InWords(model, layout, profile, media);
  if (std::ranges::none_of(profile.starts, [&](uint32_t start) { return Free(model, layout, {start, id}); }))
    return Conflict(fmt::format("{} needs placement {}; {}", profile.name, List(profile.starts, "or"),
                                WhoIsInTheWay(model, layout, profile)));
  return InWords(model, layout, profile, CountObstacle(model, layout, profile));
}

Status CanCreate(const MigModel& model, const Layout& layout, Placed instance) {
  const auto found = Known(model, instance.profile);
  if (!found) return tl::unexpected(found.error());
  const MigProfile& profile = **found;
  if (const Status status = CheckIds(model, layout); !status) return status;
  if (std::ranges::count(profile.starts, instance.start) == 0)
    return Conflict(fmt::format("{} cannot begin at {}; it needs placement {}", profile.name, instance.start,
                                List(profile.starts, "or")));
  if (const Obstacle media = MediaObstacle(model, layout, profile); media.kind != Kind::kNone)
    return InWords(model, layout, profile, media);
  if (const Layout others = InTheWay(model, layout, instance); !others.empty()) {
    const uint32_t last = instance.start + *profile.memory_slices - 1;
    const std::string slices = last == instance.start ? fmt::format("slice {}", last)
                                                      : fmt::format("slices {} to {}", instance.start, last);
    return Conflict(fmt::format("{} needs memory {}; {} {} there", At(profile, instance.start), slices,
                                Names(model, others), others.size() == 1 ? "is" : "are"));
  }
  return InWords(model, layout, profile, CountObstacle(model, layout, profile));
}

Status CheckLayout(const MigModel& model, const Layout& layout) {
  if (const Status status = CheckPlacementsKnown(model); !status) return status;
  Layout sorted = layout, so_far;
  std::ranges::sort(sorted);
  for (const Placed& instance : sorted) {
    if (const Status status = CanCreate(model, so_far, instance); !status) return status;
    so_far.push_back(instance);
  }
  return {};
}

std::vector<Layout> AllLayouts(const MigModel& model) {
  std::vector<Layout> all;
  if (!CheckPlacementsKnown(model)) return all;
  Layout so_far;
  // Instances are added from left to right, so that every set comes up once.
  const auto extend = [&](auto&& self, uint32_t from) -> void {
    all.push_back(so_far);
    if (all.size() == kMostLayouts) return;
    for (const MigProfile& profile : model.profiles) {
      for (const uint32_t start : profile.starts) {
        if (start < from || !Possible(model, so_far, profile, start)) continue;
        so_far.push_back({start, *profile.id});
        self(self, start + *profile.memory_slices);
        so_far.pop_back();
        if (all.size() == kMostLayouts) return;
      }
    }
  };
  extend(extend, 0);
  std::ranges::sort(all);
  return all;
}

// As printed by nvidia-smi mig -lcip on an A100: a 4g has 1c, 2c and 4c, and no 3c.
std::vector<uint32_t> ComputeInstanceSizes(uint32_t slices) {
  std::vector<uint32_t> sizes;
  for (const uint32_t size : {1u, 2u, 3u, 4u, 7u}) {
    if (size < slices && !(size == 3 && slices == 4)) sizes.push_back(size);
  }
  sizes.push_back(slices);
  return sizes;
}

Status CheckComputeInstances(const MigProfile& profile, const std::vector<uint32_t>& sizes) {
  const auto possible = ComputeInstanceSizes(profile.compute_slices);
  uint64_t sum = 0;
  for (const uint32_t size : sizes) {
    if (std::ranges::count(possible, size) == 0)
      return Fail(Code::kInvalid, fmt::format("{} can have no compute instance of {} slices; of {} it can",
                                              profile.name, size, List(possible, "or")));
    sum += size;
  }
  if (sum > profile.compute_slices)
    return Conflict(fmt::format("compute instances of {} slices need {}; {} has {}", List(sizes, "and"), sum,
                                profile.name, profile.compute_slices));
  return {};
}

}  // namespace gpumux::core::mig
