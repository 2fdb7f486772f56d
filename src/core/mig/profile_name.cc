// SPDX-License-Identifier: Apache-2.0
#include "core/mig/profile_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace gpumux::core::mig {
namespace {

using gpu::MigAttribute;
using gpu::MigProfile;

constexpr uint32_t kMostSlices = 99;
constexpr uint32_t kMostGb = 99999;
constexpr MigAttribute kAttributes[] = {MigAttribute::kMe, MigAttribute::kMeAll, MigAttribute::kGfx,
                                        MigAttribute::kNoMe};

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string Cut(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

// Takes "3g" or "71gb" from the front. No sign, no leading zero but for "0" itself.
std::optional<uint32_t> Take(std::string_view& text, std::string_view unit, uint32_t most) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value > most) return std::nullopt;
  const auto digits = static_cast<size_t>(end - text.data());
  if ((digits > 1 && text[0] == '0') || !text.substr(digits).starts_with(unit)) return std::nullopt;
  text.remove_prefix(digits + unit.size());
  return value;
}

tl::unexpected<Error> NotAName(std::string_view text) {
  return Fail(Code::kInvalid, fmt::format("'{}' is no MIG profile", Cut(text)),
              "write for example 1g.18gb, 3g.71gb or 1g.18gb+me");
}

std::optional<MigAttribute> AttributeOf(std::string_view text) {
  if (text.empty()) return MigAttribute::kNone;
  for (const MigAttribute attribute : kAttributes) {
    if (text == gpu::MigAttributeSuffix(attribute)) return attribute;
  }
  return std::nullopt;
}

bool About(uint32_t a, uint32_t b) { return std::max(a, b) - std::min(a, b) <= std::max(a, b) / 20; }

tl::unexpected<Error> HasNone(const gpu::MigModel& model, std::string_view text) {
  std::vector<std::string> names;
  for (const MigProfile& profile : model.profiles) names.push_back(profile.name);
  return Fail(Code::kNotFound, fmt::format("{} has no profile {}", model.key, Cut(text)),
              fmt::format("it has {}", fmt::join(names, ", ")));
}

}  // namespace

std::string ProfileName::ToString() const {
  return (compute ? fmt::format("{}c.", *compute) : "") +
         fmt::format("{}g.{}gb{}", slices, gb, gpu::MigAttributeSuffix(attribute));
}

Result<ProfileName> ParseProfileName(std::string_view text) {
  const std::string lower = Lower(text);
  std::string_view rest = lower;
  if (rest.starts_with("mig ")) rest.remove_prefix(4);
  ProfileName name;
  std::string_view after = rest;
  if (const auto compute = Take(after, "c.", kMostSlices)) {
    name.compute = compute;
    rest = after;
  }
  const auto slices = Take(rest, "g.", kMostSlices);
  const auto gb = slices ? Take(rest, "gb", kMostGb) : std::nullopt;
  const auto attribute = gb ? AttributeOf(rest) : std::nullopt;
  if (!attribute || *slices == 0 || name.compute == 0u) return NotAName(text);
  if (name.compute.value_or(0) > *slices)
    return Fail(Code::kInvalid,
                fmt::format("'{}': a compute instance of {} slices is larger than its GPU instance",
                            Cut(text), *name.compute));
  name.slices = *slices;
  name.gb = *gb;
  name.attribute = *attribute;
  if (name.compute == name.slices) name.compute.reset();
  return name;
}

Result<const MigProfile*> FindProfile(const gpu::MigModel& model, std::string_view text) {
  if (!text.empty() && text.size() < 6 &&
      std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) {
    uint32_t id = 0;
    std::from_chars(text.data(), text.data() + text.size(), id);
    const MigProfile* profile = model.FindProfile(id);
    return profile ? Result<const MigProfile*>(profile) : HasNone(model, text);
  }
  const auto name = ParseProfileName(text);
  if (!name) return tl::unexpected(name.error());
  if (name->compute)
    return Fail(Code::kInvalid,
                fmt::format("{} is a compute instance, a part of a GPU instance", name->ToString()),
                "name the GPU instance, without the part before its g");
  const MigProfile* near = nullptr;
  for (const MigProfile& profile : model.profiles) {
    const auto own = ParseProfileName(profile.name);
    if (!own || own->slices != name->slices || own->attribute != name->attribute) continue;
    if (own->gb == name->gb) return &profile;
    if (About(own->gb, name->gb)) near = &profile;
  }
  if (near) return near;
  return HasNone(model, name->ToString());
}

std::string At(const MigProfile& profile, uint32_t start) {
  return fmt::format("{} at {}", profile.name, start);
}

}  // namespace gpumux::core::mig
