// SPDX-License-Identifier: Apache-2.0
#include "core/mig/wants.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "core/mig/profile_name.h"

namespace gpumux::core::mig {
namespace {

using gpu::MigModel;
using gpu::MigProfile;

// Of shares that people write in percent.
constexpr double kRounding = 1e-9;

bool HasMemory(const MigProfile& profile, const Want& want) {
  return want.bytes == 0 || profile.bytes.value_or(0) >= want.bytes;
}
bool HasShare(const MigModel& model, const MigProfile& profile, const Want& want) {
  return ShareOf(model, profile) + kRounding >= want.share;
}

// By memory, then by compute, then those that leave engines to others.
bool Smaller(const MigProfile& a, const MigProfile& b) {
  const auto key = [](const MigProfile& profile) {
    return std::tuple(profile.memory_slices.value_or(0), profile.compute_slices,
                      profile.attribute != gpu::MigAttribute::kNone);
  };
  return key(a) < key(b);
}

const MigProfile& Largest(const MigModel& model) {
  return *std::ranges::max_element(model.profiles, Smaller);
}

}  // namespace

double ShareOf(const MigModel& model, const MigProfile& profile) {
  if (profile.sms && model.whole_sms) return static_cast<double>(*profile.sms) / *model.whole_sms;
  return static_cast<double>(profile.compute_slices) / model.compute_slices;
}

bool Serves(const MigModel& model, const MigProfile& profile, const Want& want) {
  if (!profile.placements_known() || !HasMemory(profile, want) || !HasShare(model, profile, want))
    return false;
  if (want.profile.empty()) return true;
  const auto exact = FindProfile(model, want.profile);
  return exact && *exact == &profile;
}

const MigProfile* SmallestFor(const MigModel& model, const Want& want) {
  const MigProfile* smallest = nullptr;
  for (const MigProfile& profile : model.profiles) {
    if (Serves(model, profile, want) && (!smallest || Smaller(profile, *smallest))) smallest = &profile;
  }
  return smallest;
}

std::string WhyNone(const MigModel& model, const Want& want) {
  if (const Status status = CheckPlacementsKnown(model); !status) return status.error().ToString();
  if (!want.profile.empty()) {
    const auto exact = FindProfile(model, want.profile);
    if (!exact) return exact.error().ToString();
  }
  const MigProfile& largest = Largest(model);
  if (want.bytes > 0 &&
      std::ranges::none_of(model.profiles, [](const auto& p) { return p.bytes.has_value(); }))
    return fmt::format("needs {}; how much memory instances of {} have is in no document: name the profile",
                       FormatBytes(want.bytes), model.key);
  if (largest.bytes && !HasMemory(largest, want))
    return fmt::format("needs {}; the largest instance of {}, {}, has {}", FormatBytes(want.bytes), model.key,
                       largest.name, FormatBytes(*largest.bytes));
  if (!HasShare(model, largest, want))
    return fmt::format("needs {:.0f} % of the SMs; the largest instance of {}, {}, has {:.0f} %",
                       want.share * 100, model.key, largest.name, ShareOf(model, largest) * 100);
  return fmt::format("no profile of {} has {} and {:.0f} % of the SMs as far as is known", model.key,
                     FormatBytes(want.bytes), want.share * 100);
}

}  // namespace gpumux::core::mig
