// SPDX-License-Identifier: Apache-2.0
#include "softgpu/server/mig.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <set>
#include <sstream>

namespace gpumux::softgpu {

using namespace gpumux::nvml;  // NOLINT: NVML's own names
using gpu::MigAttribute;

namespace {

// Compute instances of 1, 2, 3, 4 and 7 slices: these are their profiles' ids, and NVML's numbers of them.
constexpr uint32_t kComputeSlices[kMigComputeProfiles] = {1, 2, 3, 4, 7};

bool IsMe(uint32_t attribute) { return static_cast<MigAttribute>(attribute) == MigAttribute::kMe; }
bool IsAllMe(uint32_t attribute) { return static_cast<MigAttribute>(attribute) == MigAttribute::kMeAll; }
bool IsNoMe(uint32_t attribute) { return static_cast<MigAttribute>(attribute) == MigAttribute::kNoMe; }

// Of a smaller compute instance: as many SMs as a GPU instance of its slices has.
uint32_t SmsOf(const std::vector<MigProfileEntry>& profiles, uint32_t slices, const MigProfileEntry& of) {
  if (slices == of.compute_slices) return of.sms;
  uint32_t sms = of.sms * slices / of.compute_slices;
  for (const MigProfileEntry& profile : profiles) {
    if (profile.compute_slices == slices) sms = std::min(sms, profile.sms);
  }
  return sms;
}

// Two instances never have the same id, nor does one at the same place get another: the place in a
// binary tree, the whole GPU first.
uint32_t IdOf(uint32_t memory_slices, uint32_t size, uint32_t start) {
  const uint32_t parts = std::bit_floor(memory_slices / size);
  return parts - 1 + start / size;
}

}  // namespace

std::vector<MigProfileEntry> MigProfilesOf(const gpu::MigModel& model, uint64_t total, int sms) {
  std::vector<MigProfileEntry> entries;
  if (!model.placements_known() || !model.memory_slices) return entries;
  for (const gpu::MigProfile& profile : model.profiles) {
    if (!profile.placements_known() || !profile.nvml_profile || entries.size() == kMaxMigProfiles ||
        profile.starts.size() > sizeof(MigProfileEntry::starts))
      continue;
    MigProfileEntry entry;
    snprintf(entry.name, sizeof(entry.name), "%s", profile.name.c_str());
    entry.id = *profile.id;
    entry.nvml_profile = *profile.nvml_profile;
    entry.compute_slices = profile.compute_slices;
    entry.memory_slices = *profile.memory_slices;
    entry.max_instances = profile.max_instances;
    entry.attribute = static_cast<uint32_t>(profile.attribute);
    entry.sms = profile.sms.value_or(static_cast<uint32_t>(sms) * profile.compute_slices /
                                     model.compute_slices / 2 * 2);
    entry.memory_mib = static_cast<uint32_t>(
        profile.bytes.value_or(total / *model.memory_slices * *profile.memory_slices) >> 20);
    const gpu::MigEngines engines = profile.engines.value_or(gpu::MigEngines{});
    entry.copy = engines.copy;
    entry.nvdec = engines.nvdec;
    entry.nvenc = engines.nvenc;
    entry.jpeg = engines.jpeg;
    entry.ofa = engines.ofa;
    for (uint32_t start : profile.starts) entry.starts[entry.start_count++] = static_cast<uint8_t>(start);
    entries.push_back(entry);
  }
  for (MigProfileEntry& entry : entries) {
    for (uint32_t i = 0; i < kMigComputeProfiles; ++i) {
      const uint32_t slices = kComputeSlices[i], whole = entry.compute_slices;
      // Three of four, and four of seven with three left, are what no output shows but the whole.
      const bool known = slices == whole || (slices < whole && (slices != 3 || whole == 7));
      if (!known) continue;
      entry.compute[i] = {.slices = slices,
                          .sms = SmsOf(entries, slices, entry),
                          .count = static_cast<uint32_t>(ComputeStarts(whole, slices).size())};
    }
  }
  return entries;
}

MigGpu::MigGpu(std::vector<MigProfileEntry> profiles, const gpu::MigModel& model)
    : profiles_(std::move(profiles)),
      compute_slices_(model.compute_slices),
      memory_slices_(model.memory_slices.value_or(0)),
      max_instances_(model.max_instances),
      needs_reset_(model.enable.needs_reset.value_or(true)),
      survives_(model.enable.survives_reboot.value_or(false)) {}

const MigProfileEntry* MigGpu::FindProfile(uint32_t id) const {
  const auto found =
      std::find_if(profiles_.begin(), profiles_.end(), [&](const auto& p) { return p.id == id; });
  return found != profiles_.end() ? &*found : nullptr;
}

const MigGpu::Instance* MigGpu::FindInstance(uint32_t number) const {
  for (const auto& [id, instance] : instances_) {
    if (instance.number == number) return &instance;
  }
  return nullptr;
}

MigGpu::Instance* MigGpu::Find(uint32_t number) {
  for (auto& [id, instance] : instances_) {
    if (instance.number == number) return &instance;
  }
  return nullptr;
}

const MigGpu::Compute* MigGpu::FindCompute(uint32_t place) const {
  for (const auto& [id, instance] : instances_) {
    for (const auto& [compute_id, compute] : instance.computes) {
      if (compute.place == place) return &compute;
    }
  }
  return nullptr;
}

nvmlReturn_t MigGpu::SetMode(bool on, bool in_use) {
  pending_ = on;
  if (enabled_ == on) return NVML_SUCCESS;
  if (in_use) return NVML_ERROR_IN_USE;
  if (needs_reset_) return NVML_ERROR_RESET_REQUIRED;
  Reset();
  return NVML_SUCCESS;
}

void MigGpu::Reset() {
  instances_.clear();
  enabled_ = pending_;
}

void MigGpu::Unload() {
  if (!survives_) pending_ = false;
  Reset();
}

void MigGpu::Boot(bool enabled) {
  pending_ = enabled && capable();
  Reset();
}

nvmlReturn_t MigGpu::Fits(const MigProfileEntry& profile, uint32_t start) const {
  uint32_t slices = profile.compute_slices, alike = 0, total = 0;
  for (const auto& [id, other] : instances_) {
    slices += other.profile.compute_slices;
    alike += other.profile.id == profile.id ? 1 : 0;
    ++total;
    const bool apart =
        other.start + other.profile.memory_slices <= start || start + profile.memory_slices <= other.start;
    const bool media = (IsMe(other.profile.attribute) && IsMe(profile.attribute)) ||
                       (IsAllMe(other.profile.attribute) && !IsNoMe(profile.attribute)) ||
                       (IsAllMe(profile.attribute) && !IsNoMe(other.profile.attribute));
    if (!apart || media) return NVML_ERROR_INSUFFICIENT_RESOURCES;
  }
  const bool room = slices <= compute_slices_ && alike < profile.max_instances && total < max_instances_;
  return room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t MigGpu::Create(uint32_t id, std::optional<uint32_t> start, uint32_t number) {
  if (!enabled_) return NVML_ERROR_NOT_SUPPORTED;
  const MigProfileEntry* profile = FindProfile(id);
  if (profile == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const uint8_t* const end = profile->starts + profile->start_count;
  if (start && std::find(profile->starts, end, *start) == end) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_RESOURCES;
  for (const uint8_t* at = profile->starts; at != end && result != NVML_SUCCESS; ++at) {
    if (start && *at != *start) continue;
    result = Fits(*profile, *at);
    if (result != NVML_SUCCESS) continue;
    Instance made;
    made.number = number;
    made.id = IdOf(memory_slices_, profile->memory_slices, *at);
    made.profile = *profile;
    made.start = *at;
    instances_.emplace(made.id, std::move(made));
  }
  return result;
}

nvmlReturn_t MigGpu::Destroy(uint32_t number) {
  const Instance* instance = Find(number);
  if (instance == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (!instance->computes.empty()) return NVML_ERROR_IN_USE;
  instances_.erase(instance->id);
  return NVML_SUCCESS;
}

uint32_t MigGpu::FreeIndex() const {
  std::set<uint32_t> taken;
  for (const auto& [id, instance] : instances_) {
    for (const auto& [compute_id, compute] : instance.computes) taken.insert(compute.index);
  }
  uint32_t index = 0;
  while (taken.contains(index)) ++index;
  return index;
}

nvmlReturn_t MigGpu::CreateCompute(uint32_t number, uint32_t profile, std::optional<uint32_t> start,
                                   uint32_t place) {
  Instance* instance = Find(number);
  if (instance == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (profile >= kMigComputeProfiles || instance->profile.compute[profile].slices == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  const MigComputeEntry& what = instance->profile.compute[profile];
  const auto starts = ComputeStarts(instance->profile.compute_slices, what.slices);
  if (start && std::find(starts.begin(), starts.end(), *start) == starts.end())
    return NVML_ERROR_INVALID_ARGUMENT;
  const auto free = [&](uint32_t at) {
    return std::none_of(instance->computes.begin(), instance->computes.end(), [&](const auto& other) {
      return other.second.start < at + what.slices && at < other.second.start + other.second.size;
    });
  };
  for (uint32_t at : starts) {
    if ((start && *start != at) || !free(at)) continue;
    Compute made{.place = place, .profile = profile, .start = at, .size = what.slices};
    while (instance->computes.contains(made.id)) ++made.id;
    made.index = FreeIndex();
    made.sms = static_cast<int>(what.sms);
    instance->computes.emplace(made.id, made);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t MigGpu::DestroyCompute(uint32_t place) {
  for (auto& [id, instance] : instances_) {
    for (auto it = instance.computes.begin(); it != instance.computes.end(); ++it) {
      if (it->second.place != place) continue;
      instance.computes.erase(it);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t MigGpu::Room(uint32_t id, uint32_t* count) const {
  if (!enabled_) return NVML_ERROR_NOT_SUPPORTED;
  if (FindProfile(id) == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  MigGpu trial = *this;
  // Instances of one profile never keep each other from a place but by overlapping: in order is as many
  // as there can be.
  *count = 0;
  while (trial.Create(id, std::nullopt, 0) == NVML_SUCCESS) ++*count;
  return NVML_SUCCESS;
}

nvmlReturn_t MigGpu::ComputeRoom(uint32_t number, uint32_t profile, uint32_t* count) const {
  MigGpu trial = *this;
  *count = 0;
  nvmlReturn_t result = NVML_SUCCESS;
  while ((result = trial.CreateCompute(number, profile, std::nullopt, 0)) == NVML_SUCCESS) ++*count;
  return result == NVML_ERROR_INSUFFICIENT_RESOURCES ? NVML_SUCCESS : result;
}

std::string MigGpu::Save() const {
  std::ostringstream out;
  out << "mode " << enabled_ << ' ' << pending_ << '\n';
  for (const auto& [id, instance] : instances_) {
    out << "gpu-instance " << instance.number << ' ' << instance.profile.id << ' ' << instance.start << '\n';
    for (const auto& [compute_id, compute] : instance.computes) {
      out << "compute-instance " << instance.number << ' ' << compute.profile << ' ' << compute.start << ' '
          << compute.place << '\n';
    }
  }
  return out.str();
}

Status MigGpu::RestoreLine(const std::string& line) {
  std::istringstream in(line);
  std::string what, rest;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  in >> what >> a >> b;
  nvmlReturn_t result = NVML_ERROR_UNKNOWN;
  if (what == "mode" && in && a <= 1 && b <= 1 && instances_.empty()) {
    enabled_ = a == 1;
    pending_ = b == 1;
    result = NVML_SUCCESS;
  } else if (what == "gpu-instance" && in >> c && a >= kFirstPlace && Find(a) == nullptr) {
    result = Create(b, c, a);
  } else if (what == "compute-instance" && in >> c >> d && d >= kFirstPlace && FindCompute(d) == nullptr) {
    result = CreateCompute(a, b, c, d);
  }
  if (result != NVML_SUCCESS || in >> rest)
    return Fail(Code::kInvalid, "not a line of the state of MIG, or one that does not fit");
  return {};
}

Status MigGpu::Restore(const std::string& text) {
  std::istringstream in(text);
  Status status;
  for (std::string line; status && std::getline(in, line);) status = RestoreLine(line);
  if (!status) Boot(false);
  return status;
}

}  // namespace gpumux::softgpu
