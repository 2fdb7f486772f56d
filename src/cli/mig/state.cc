// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/state.h"

#include <algorithm>
#include <map>

#include "gpu/mig_models.h"

namespace gpumux::cli {
namespace {

using gpu::MigInstance;
using gpu::MigModel;

// Profiles as the driver told them, and how many slices that makes.
MigModel ModelOf(const gpu::Device& device, std::vector<gpu::MigProfile> profiles) {
  MigModel model;
  model.name = device.name;
  model.from_device = true;
  for (const gpu::MigProfile& profile : profiles) {
    model.compute_slices = std::max(model.compute_slices, profile.compute_slices);
    if (!profile.memory_slices || profile.starts.empty()) continue;
    model.memory_slices =
        std::max(model.memory_slices.value_or(0), profile.starts.back() + *profile.memory_slices);
  }
  model.profiles = std::move(profiles);
  return model;
}

// By GPU instance; all that the handles of MIG devices tell, which needs no rights.
Result<std::map<uint32_t, MigInstanceState>> ByDevices(gpu::Mig& mig, const gpu::Uuid& uuid) {
  const auto devices = mig.Devices(uuid);
  if (!devices) return tl::unexpected(devices.error());
  std::map<uint32_t, MigInstanceState> instances;
  for (const gpu::MigDevice& device : *devices) {
    MigInstanceState& instance = instances[device.gpu_instance];
    instance.id = device.gpu_instance;
    instance.devices.push_back(
        {.device = device,
         .memory = mig.Memory(uuid, device.gpu_instance, device.compute_instance),
         .processes = mig.Processes(uuid, device.gpu_instance, device.compute_instance)});
  }
  return instances;
}

void ReadRoom(MigGpuState& state, gpu::Mig& mig) {
  for (const gpu::MigProfile& profile : state.model.profiles) {
    const auto room = mig.Room(state.device.uuid, *profile.id);
    if (!room) {
      state.room = tl::unexpected(room.error());
      return;
    }
    if (*room > 0) state.room->emplace_back(profile.name, *room);
  }
}

void ReadInstances(MigGpuState& state, gpu::Mig& mig) {
  auto found = ByDevices(mig, state.device.uuid);
  if (!found) {
    state.instances = tl::unexpected(found.error());
    return;
  }
  const auto placed = mig.Instances(state.device.uuid);
  if (!placed) state.placements = tl::unexpected(placed.error());
  for (const MigInstance& each : placed.value_or(std::vector<MigInstance>{})) {
    MigInstanceState& instance = (*found)[each.id];
    instance.id = each.id;
    instance.placed = each;
    if (const gpu::MigProfile* profile = state.model.FindProfile(each.profile))
      instance.profile = profile->name;
  }
  for (auto& [id, instance] : *found) state.instances->push_back(std::move(instance));
  const auto start = [](const MigInstanceState& i) { return i.placed ? i.placed->placement.start : 0; };
  std::stable_sort(state.instances->begin(), state.instances->end(),
                   [&](const auto& a, const auto& b) { return start(a) < start(b); });
}

}  // namespace

MigGpuState ReadMigState(gpu::Nvml& nvml, const gpu::Device& device) {
  gpu::Mig& mig = nvml.mig();
  MigGpuState state{
      .device = device, .modes = mig.Modes(device.uuid), .model = {}, .profiles = {}, .placements = {}};
  if (!state.enabled()) return state;
  if (auto profiles = mig.Profiles(device.uuid)) {
    state.model = ModelOf(device, std::move(*profiles));
    ReadRoom(state, mig);
  } else {
    state.profiles = tl::unexpected(profiles.error());
    state.room = tl::unexpected(profiles.error());
  }
  ReadInstances(state, mig);
  return state;
}

}  // namespace gpumux::cli
