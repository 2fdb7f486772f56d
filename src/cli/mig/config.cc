// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace gpumux::cli {
namespace {

using core::mig::GpuPlan;
using core::mig::GpuState;
using core::mig::Layout;
using core::mig::Placed;
using core::mig::Present;
using core::mig::ProfileName;
using core::mig::ProfileOf;
using core::mig::Want;
using gpu::MigModel;

// Compute instances of one size of GPU instance, and how they fill such instances.
using Fills = std::vector<std::vector<uint32_t>>;

// Large ones first, each into the first GPU instance that has room.
Fills Pack(std::vector<uint32_t> sizes, uint32_t slices) {
  Fills fills;
  std::ranges::sort(sizes, std::greater());
  for (const uint32_t size : sizes) {
    const auto room = std::ranges::find_if(fills, [&](const std::vector<uint32_t>& fill) {
      return std::accumulate(fill.begin(), fill.end(), size) <= slices;
    });
    if (room != fills.end()) {
      room->push_back(size);
    } else {
      fills.push_back({size});
    }
  }
  return fills;
}

// What an entry wants of one GPU, by id of profile.
Result<std::map<uint32_t, Fills>> WantedBy(const MigFileEntry& entry, const MigModel& model) {
  std::map<uint32_t, std::vector<uint32_t>> sizes;
  for (const auto& [name, count] : entry.instances) {
    ProfileName whole = name;
    whole.compute.reset();
    const auto profile = core::mig::FindProfile(model, whole.ToString());
    if (!profile) return tl::unexpected(profile.error());
    if (!(*profile)->id) return tl::unexpected(core::mig::CheckPlacementsKnown(model).error());
    const uint32_t size = name.compute.value_or((*profile)->compute_slices);
    if (const Status status = core::mig::CheckComputeInstances(**profile, {size}); !status)
      return tl::unexpected(status.error());
    sizes[*(*profile)->id].insert(sizes[*(*profile)->id].end(), count, size);
  }
  std::map<uint32_t, Fills> wanted;
  for (const auto& [id, list] : sizes) wanted[id] = Pack(list, ProfileOf(model, id).compute_slices);
  return wanted;
}

// Takes those in use out of what is wanted; they stay where they are.
Status KeepBusy(const GpuState& gpu, std::map<uint32_t, Fills>& wanted) {
  std::vector<std::string> others;
  for (const Present& present : gpu.present) {
    if (present.users.empty()) continue;
    Fills& fills = wanted[present.instance.profile];
    if (fills.empty()) {
      others.push_back(fmt::format("{} ({})", core::mig::Name(*gpu.model, present.instance),
                                   fmt::join(present.users, ", ")));
    } else {
      fills.pop_back();
    }
  }
  if (others.empty()) return {};
  return Fail(Code::kConflict,
              fmt::format("{}: in use, and not in the configuration: {}", gpu.name, fmt::join(others, "; ")),
              "end what runs there first");
}

struct OnePlan {
  std::vector<Want> wants;
  core::mig::Plan plan;
  MigDivisions divided;
};

// Removes idle instances that nobody was given, and says how those that are given are divided.
void Finish(const GpuState& gpu, const std::map<uint32_t, Fills>& wanted, OnePlan& one) {
  GpuPlan& plan = one.plan.gpus[0];
  for (const Present& present : gpu.present) {
    const bool given = std::ranges::count(plan.given, present.instance, &core::mig::Given::instance) > 0;
    if (!present.users.empty() || given) continue;
    plan.score.destroyed += static_cast<uint32_t>(std::erase(plan.layout, present.instance));
  }
  std::map<uint32_t, size_t> next;
  for (const auto& given : plan.given) {
    const auto fills = wanted.find(given.instance.profile);
    const size_t at = next[given.instance.profile]++;
    if (fills == wanted.end() || at >= fills->second.size()) continue;
    const uint32_t whole = ProfileOf(*gpu.model, given.instance.profile).compute_slices;
    if (fills->second[at] != std::vector{whole}) one.divided[given.instance] = fills->second[at];
  }
}

Result<OnePlan> PlanGpu(const MigFileEntry* entry, const GpuState& gpu) {
  OnePlan one;
  std::map<uint32_t, Fills> wanted;
  if (entry) {
    auto read = WantedBy(*entry, *gpu.model);
    if (!read) return tl::unexpected(read.error());
    wanted = std::move(*read);
    if (const Status status = KeepBusy(gpu, wanted); !status) return tl::unexpected(status.error());
  }
  for (const auto& [id, fills] : wanted) {
    if (fills.empty()) continue;
    one.wants.push_back(
        {ProfileOf(*gpu.model, id).name, static_cast<uint32_t>(fills.size()), std::to_string(id)});
  }
  auto plan = core::mig::MakePlan({gpu}, one.wants, {.may_disturb = false});
  if (!plan) return tl::unexpected(plan.error());
  one.plan = std::move(*plan);
  if (entry) Finish(gpu, wanted, one);
  return one;
}

void Append(MigPlanned& planned, OnePlan one) {
  const size_t first = planned.wants.size();
  for (auto& given : one.plan.gpus[0].given) {
    for (size_t& want : given.whom) want += first;
  }
  for (auto& unplaced : one.plan.unplaced) {
    unplaced.want += first;
    planned.plan.unplaced.push_back(unplaced);
  }
  planned.wants.insert(planned.wants.end(), one.wants.begin(), one.wants.end());
  planned.plan.most_placed = planned.plan.most_placed && one.plan.most_placed;
  planned.plan.score += one.plan.score;
  planned.plan.gpus.push_back(std::move(one.plan.gpus[0]));
  planned.divided.push_back(std::move(one.divided));
}

Result<MigFileEntry> EntryOf(const MigExported& gpu) {
  MigFileEntry entry;
  entry.enabled = gpu.enabled;
  if (!gpu.enabled) return entry;
  if (const Status status = core::mig::CheckLayout(*gpu.model, gpu.layout); !status)
    return tl::unexpected(status.error());
  for (const Placed& instance : gpu.layout) {
    const auto name = core::mig::ParseProfileName(ProfileOf(*gpu.model, instance.profile).name);
    if (!name) return tl::unexpected(name.error());
    const auto divided = gpu.divided.find(instance);
    for (const uint32_t size : divided == gpu.divided.end() ? std::vector{name->slices} : divided->second) {
      ProfileName one = *name;
      if (size != name->slices) one.compute = size;
      const auto same =
          std::ranges::find(entry.instances, one, [](const auto& known) { return known.first; });
      if (same == entry.instances.end()) {
        entry.instances.emplace_back(one, 1);
      } else {
        ++same->second;
      }
    }
  }
  std::ranges::sort(entry.instances, {}, [](const auto& one) { return one.first.ToString(); });
  return entry;
}

}  // namespace

Result<MigPlanned> PlanOfConfig(const std::vector<MigFileEntry>& config, const MigGpus& machine) {
  MigPlanned planned;
  planned.gpus = machine.gpus;
  planned.uuids = machine.uuids;
  planned.simulated = machine.simulated;
  for (size_t i = 0; i < machine.gpus.size(); ++i) {
    const GpuState& gpu = machine.gpus[i];
    const MigFileEntry* entry = EntryFor(config, machine.indices[i], *gpu.model);
    auto one = PlanGpu(entry, gpu);
    if (!one) return tl::unexpected(one.error());
    planned.enabled.push_back(!entry || entry->enabled);
    Append(planned, std::move(*one));
  }
  return planned;
}

Result<std::vector<MigFileEntry>> ConfigOf(const std::vector<MigExported>& gpus) {
  std::vector<MigFileEntry> config;
  bool first_ones = true;
  for (size_t i = 0; i < gpus.size(); ++i) {
    first_ones = first_ones && gpus[i].index == i;
    auto entry = EntryOf(gpus[i]);
    if (!entry) return tl::unexpected(entry.error());
    const auto alike = std::ranges::find_if(config, [&](const MigFileEntry& known) {
      return known.enabled == entry->enabled && known.instances == entry->instances;
    });
    if (alike == config.end()) {
      entry->devices = std::vector{gpus[i].index};
      config.push_back(std::move(*entry));
    } else {
      alike->devices->push_back(gpus[i].index);
    }
  }
  if (config.size() == 1 && first_ones) config[0].devices.reset();
  return config;
}

}  // namespace gpumux::cli
