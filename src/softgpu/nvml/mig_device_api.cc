// SPDX-License-Identifier: Apache-2.0
//
// MIG devices: compute instances as programs see them.
#include <span>
#include <string>

#include "softgpu/names.h"
#include "softgpu/nvml/mig.h"
#include "softgpu/uuid.h"

namespace gpumux::nvml {

namespace {

// The text that names a MIG device; before R470 it was made of the GPU's.
std::string UuidTextOf(const softgpu::Description& d, const std::string& gpu) {
  if (softgpu::DriverBranch(d.driver_version) >= softgpu::kMigUuidBranch)
    return softgpu::MigUuidOf(d.uuid).text;
  return "MIG-" + gpu + "/" + std::to_string(d.gpu_instance) + "/" + std::to_string(d.compute_instance);
}

// With the lock held: the device of a place, made when it is first asked for.
Device* MigDevice(State& state, const Device& gpu, const MigComputeInstanceEntry& entry) {
  auto& made = state.mig_devices[entry.place];
  softgpu::Description description;
  if (!state.connection.Describe(entry.place, &description)) return nullptr;
  if (!made) made = std::make_unique<Device>();
  made->index = gpu.index;
  made->place = entry.place;
  made->number = entry.index;
  made->found = true;
  made->lost = false;
  made->description = description;
  made->uuid = UuidTextOf(description, gpu.uuid);
  return made.get();
}

}  // namespace

nvmlReturn_t FindMigDevice(const char* uuid, nvmlDevice_t* out) {
  State& state = Get();
  std::lock_guard lock(state.mutex);
  if (state.inits == 0) return NVML_ERROR_UNINITIALIZED;
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; i < state.count; ++i) {
    MigState mig;
    if (!state.devices[i].found || Read(state, state.devices[i], &mig) != NVML_SUCCESS) continue;
    for (uint32_t k = 0; k < mig.compute_count; ++k) {
      Device* device = MigDevice(state, state.devices[i], mig.computes[k]);
      if (device == nullptr || device->uuid != uuid) continue;
      *out = reinterpret_cast<nvmlDevice_t>(device);
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

GPUMUX_NVML nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned* count) {
  GPUMUX_NVML_DEVICE(device, handle, count);
  MigState mig;
  const nvmlReturn_t read = GpuWithMig(handle, &device, &mig);
  if (read != NVML_SUCCESS && read != NVML_ERROR_NOT_SUPPORTED) return read;
  *count = read == NVML_SUCCESS ? mig.max_devices : 0;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned* is) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, is);
  *is = device->is_mig() ? 1 : 0;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t* out) {
  Device* device = nullptr;
  MigState mig;
  const nvmlReturn_t read = CheckOut(GpuWithMig(handle, &device, &mig), out);
  if (read == NVML_ERROR_NOT_SUPPORTED) return NVML_ERROR_NOT_FOUND;
  if (read != NVML_SUCCESS) return read;
  if (mig.enabled != 0 && index >= mig.max_devices) return NVML_ERROR_INVALID_ARGUMENT;
  State& state = Get();
  std::lock_guard lock(state.mutex);
  for (uint32_t i = 0; i < mig.compute_count; ++i) {
    if (mig.computes[i].index != index) continue;
    Device* found = MigDevice(state, *device, mig.computes[i]);
    if (found == nullptr) break;
    *out = reinterpret_cast<nvmlDevice_t>(found);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

GPUMUX_NVML nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t handle, nvmlDevice_t* out) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, out);
  if (!device->is_mig()) return NVML_ERROR_INVALID_ARGUMENT;
  *out = reinterpret_cast<nvmlDevice_t>(&Get().devices[device->index]);
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetGpuInstanceId(nvmlDevice_t handle, unsigned* id) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, id);
  if (!device->is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  *id = device->description.gpu_instance;
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetComputeInstanceId(nvmlDevice_t handle, unsigned* id) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, id);
  if (!device->is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  *id = device->description.compute_instance;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t* attributes) {
  GPUMUX_NVML_ANY_DEVICE(device, handle, attributes);
  if (!device->is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  State& state = Get();
  MigState mig;
  MigProfileList list;
  {
    std::lock_guard lock(state.mutex);
    if (Read(state, *device, &mig) != NVML_SUCCESS || !state.connection.MigProfiles(device->index, &list))
      return NVML_ERROR_GPU_IS_LOST;
  }
  for (uint32_t i = 0; i < mig.compute_count; ++i) {
    const MigComputeInstanceEntry& entry = mig.computes[i];
    if (entry.place != device->place) continue;
    const MigInstanceEntry* instance = EntryOf(mig, entry.instance);
    const MigProfileEntry* profile = instance != nullptr ? ById(list, instance->profile) : nullptr;
    if (profile == nullptr) break;
    *attributes = {.multiprocessorCount = profile->compute[entry.profile].sms,
                   .sharedCopyEngineCount = profile->copy,
                   .sharedDecoderCount = profile->nvdec,
                   .sharedEncoderCount = profile->nvenc,
                   .sharedJpegCount = profile->jpeg,
                   .sharedOfaCount = profile->ofa,
                   .gpuInstanceSliceCount = profile->compute_slices,
                   .computeInstanceSliceCount = profile->compute[entry.profile].slices,
                   .memorySizeMB = profile->memory_mib};
    return NVML_SUCCESS;
  }
  return NVML_ERROR_INVALID_ARGUMENT;
}

}  // namespace gpumux::nvml
