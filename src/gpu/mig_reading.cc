// SPDX-License-Identifier: Apache-2.0
#include "gpu/mig_reading.h"

#include <algorithm>

#include "gpu/nvml_mig.h"

namespace gpumux::gpu {

namespace {

MigProfile Merged(MigProfile told, const MigModel* table) {
  const MigProfile* row = table && told.id ? table->FindProfile(*told.id) : nullptr;
  if (!row) return told;
  if (told.starts.empty() && row->placements_known()) {
    told.starts = row->starts;
    told.memory_slices = row->memory_slices;
    told.inferred |= kInferredPlacements;
  }
  if (!told.sms && row->sms) {
    told.sms = row->sms;
    told.inferred |= kInferredSms;
  }
  return told;
}

// The largest instance has all slices.
MigModel ModelOf(const Device& device, const std::vector<MigProfile>& profiles, const MigModel* table) {
  MigModel model;
  if (table) model = *table;
  if (!table) model.key = device.name;
  model.name = device.name;
  model.note.clear();
  model.from_device = true;
  model.profiles.clear();
  model.compute_slices = model.max_instances = 0;
  model.memory_slices.reset();
  for (const MigProfile& told : profiles) {
    const MigProfile profile = Merged(told, table);
    model.compute_slices = std::max(model.compute_slices, profile.compute_slices);
    model.max_instances = std::max(model.max_instances, profile.max_instances);
    for (const uint32_t start : profile.starts)
      model.memory_slices =
          std::max(model.memory_slices.value_or(0), start + profile.memory_slices.value_or(0));
    model.profiles.push_back(profile);
  }
  return model;
}

}  // namespace

Result<MigModel> ReadMigModel(Nvml& nvml, const Device& device) {
  const auto modes = nvml.mig().Modes(device.uuid);
  if (!modes) return tl::unexpected(modes.error());
  if (!*modes) return Fail(Code::kUnsupported, "GPU " + device.index.Label() + " has no MIG");
  if (!(*modes)->current)
    return Fail(Code::kConflict, "MIG is off on GPU " + device.index.Label(),
                "switch it on: gpumux mig enable " + device.index.Label());
  const auto profiles = nvml.mig().Profiles(device.uuid);
  if (!profiles) return tl::unexpected(profiles.error());
  const auto table = FindMigModel(device.name);
  return ModelOf(device, *profiles, table ? *table : nullptr);
}

}  // namespace gpumux::gpu
