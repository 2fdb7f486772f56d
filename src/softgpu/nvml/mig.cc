// SPDX-License-Identifier: Apache-2.0
#include "softgpu/nvml/mig.h"

#include <algorithm>
#include <span>
#include <utility>

namespace gpumux::nvml {

namespace {

struct Handles {
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<GpuInstance>> instances;  // by GPU and number
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<ComputeInstance>> computes;
};
// Guarded by the state's mutex.
Handles& All() {
  static Handles* handles = new Handles;
  return *handles;
}

template <typename Object, typename Map>
const Object* Known(const Map& map, const void* handle) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  for (const auto& [key, object] : map) {
    if (object.get() == handle) return object.get();
  }
  return nullptr;
}

}  // namespace

nvmlReturn_t Read(State& state, const Device& gpu, MigState* mig) {
  return state.connection.Mig(gpu.index, mig) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

bool MigOn(nvmlDevice_t handle) {
  Device* device = nullptr;
  MigState mig;
  return CheckGpu(handle, &device) == NVML_SUCCESS && (device->description.flags & softgpu::kFlagMig) != 0 &&
         GpuWithMig(handle, &device, &mig) == NVML_SUCCESS && mig.enabled != 0;
}

bool MayReadAll(nvmlDevice_t handle) { return !MigOn(handle) || MayLookNow(); }

nvmlReturn_t GpuWithMig(nvmlDevice_t handle, Device** device, MigState* mig) {
  if (nvmlReturn_t error = CheckGpu(handle, device); error != NVML_SUCCESS) return error;
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (nvmlReturn_t error = Read(state, **device, mig); error != NVML_SUCCESS) return error;
  return mig->capable != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t Look(nvmlDevice_t handle, Device** device, MigState* mig) {
  if (nvmlReturn_t error = GpuWithMig(handle, device, mig); error != NVML_SUCCESS) return error;
  if (mig->enabled == 0) return NVML_ERROR_NOT_SUPPORTED;
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return MayLook(state) ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

nvmlReturn_t Profiles(const Device& device, MigProfileList* list) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return state.connection.MigProfiles(device.index, list) ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

const MigProfileEntry* ById(const MigProfileList& list, uint32_t id) {
  for (const MigProfileEntry& entry : std::span(list.entries, list.count)) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

const MigInstanceEntry* EntryOf(const MigState& mig, uint32_t number) {
  for (const MigInstanceEntry& entry : std::span(mig.instances, mig.instance_count)) {
    if (entry.number == number) return &entry;
  }
  return nullptr;
}

nvmlGpuInstance_t HandleOf(Device* device, uint32_t number) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  auto& made = All().instances[{device->index, number}];
  if (!made) made = std::make_unique<GpuInstance>(GpuInstance{device, number});
  return reinterpret_cast<nvmlGpuInstance_t>(made.get());
}

nvmlComputeInstance_t ComputeHandleOf(Device* device, uint32_t place) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  auto& made = All().computes[{device->index, place}];
  if (!made) made = std::make_unique<ComputeInstance>(ComputeInstance{device, place});
  return reinterpret_cast<nvmlComputeInstance_t>(made.get());
}

nvmlReturn_t Find(nvmlGpuInstance_t handle, FoundInstance* found) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
  const auto* known = Known<GpuInstance>(All().instances, handle);
  if (known == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  found->device = known->device;
  Device* device = nullptr;
  const auto of = reinterpret_cast<nvmlDevice_t>(known->device);
  if (nvmlReturn_t error = GpuWithMig(of, &device, &found->mig); error != NVML_SUCCESS) return error;
  const MigInstanceEntry* entry = EntryOf(found->mig, known->number);
  if (entry == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  found->entry = *entry;
  MigProfileList list;
  if (nvmlReturn_t error = Profiles(*device, &list); error != NVML_SUCCESS) return error;
  const MigProfileEntry* profile = ById(list, entry->profile);
  if (profile == nullptr) return NVML_ERROR_UNKNOWN;
  found->profile = *profile;
  return NVML_SUCCESS;
}

bool MayLookNow() {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  return MayLook(state);
}

nvmlReturn_t Find(nvmlComputeInstance_t handle, MigComputeInstanceEntry* entry, FoundInstance* instance) {
  if (nvmlReturn_t error = CheckInitialized(); error != NVML_SUCCESS) return error;
  const auto* known = Known<ComputeInstance>(All().computes, handle);
  if (known == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  Device* device = nullptr;
  MigState mig;
  const auto of = reinterpret_cast<nvmlDevice_t>(known->device);
  if (nvmlReturn_t error = GpuWithMig(of, &device, &mig); error != NVML_SUCCESS) return error;
  const std::span all(mig.computes, mig.compute_count);
  const auto found = std::ranges::find(all, known->place, &MigComputeInstanceEntry::place);
  if (found == all.end()) return NVML_ERROR_INVALID_ARGUMENT;
  *entry = *found;
  return Find(HandleOf(device, found->instance), instance);
}

}  // namespace gpumux::nvml
