// SPDX-License-Identifier: Apache-2.0
//
// MIG: its mode, profiles and GPU instances.
#include <cstdio>
#include <span>

#include "gpu/mig_models.h"
#include "softgpu/nvml/mig.h"

namespace gpumux::nvml {

using softgpu::Op;

namespace {

// NVML 13.0 knows numbers of profiles below this.
constexpr unsigned kProfileNumbers = 17;
constexpr unsigned kCapabilityGfx = 2;

template <typename Info>
void Fill(const MigProfileEntry& entry, Info* info) {
  info->id = entry.id;
  info->sliceCount = entry.compute_slices;
  info->instanceCount = entry.max_instances;
  info->multiprocessorCount = entry.sms;
  info->copyEngineCount = entry.copy;
  info->decoderCount = entry.nvdec;
  info->encoderCount = entry.nvenc;
  info->jpegCount = entry.jpeg;
  info->ofaCount = entry.ofa;
  info->memorySizeMB = entry.memory_mib;
  if constexpr (requires { info->isP2pSupported; }) info->isP2pSupported = 0;
  if constexpr (requires { info->name; }) snprintf(info->name, sizeof(info->name), "MIG %s", entry.name);
  if constexpr (requires { info->capabilities; })
    info->capabilities =
        static_cast<gpu::MigAttribute>(entry.attribute) == gpu::MigAttribute::kGfx ? kCapabilityGfx : 0;
}

// The profile that NVML's number means on this GPU.
nvmlReturn_t ByNumber(nvmlDevice_t handle, unsigned number, MigProfileEntry* entry) {
  Device* device = nullptr;
  MigState mig;
  if (nvmlReturn_t error = GpuWithMig(handle, &device, &mig); error != NVML_SUCCESS) return error;
  if (number >= kProfileNumbers) return NVML_ERROR_INVALID_ARGUMENT;
  if (mig.enabled == 0) return NVML_ERROR_NOT_SUPPORTED;
  MigProfileList list;
  if (nvmlReturn_t error = Profiles(*device, &list); error != NVML_SUCCESS) return error;
  for (uint32_t i = 0; i < list.count; ++i) {
    if (list.entries[i].nvml_profile != number) continue;
    *entry = list.entries[i];
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_SUPPORTED;
}

// A versioned structure, by its version word.
nvmlReturn_t FillVersioned(const MigProfileEntry& entry, nvmlGpuInstanceProfileInfo_v2_t* info) {
  const unsigned version = info->version;
  if (version == kGpuInstanceProfileV2) {
    Fill(entry, info);
  } else if (version == kGpuInstanceProfileV3) {
    Fill(entry, reinterpret_cast<nvmlGpuInstanceProfileInfo_v3_t*>(info));
  } else {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return NVML_SUCCESS;
}

bool GoodVersion(const nvmlGpuInstanceProfileInfo_v2_t* info) {
  return info != nullptr &&
         (info->version == kGpuInstanceProfileV2 || info->version == kGpuInstanceProfileV3);
}

}  // namespace

// --- Mode

GPUMUX_NVML nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned* current, unsigned* pending) {
  Device* device = nullptr;
  MigState mig;
  if (nvmlReturn_t error = CheckOut(GpuWithMig(handle, &device, &mig), current, pending);
      error != NVML_SUCCESS)
    return error;
  *current = mig.enabled;
  *pending = mig.pending;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceSetMigMode(nvmlDevice_t handle, unsigned mode, nvmlReturn_t* activation) {
  GPUMUX_NVML_DEVICE(device, handle, activation);
  if (mode > kMigEnable) return NVML_ERROR_INVALID_ARGUMENT;
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kMigSetMode, &reply, mode); error != NVML_SUCCESS) return error;
  *activation = static_cast<nvmlReturn_t>(reply.values[0]);
  return NVML_SUCCESS;
}

// --- Profiles of GPU instances

GPUMUX_NVML nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned number,
                                                nvmlGpuInstanceProfileInfo_t* info) {
  MigProfileEntry entry;
  if (nvmlReturn_t error = CheckOut(ByNumber(handle, number, &entry), info); error != NVML_SUCCESS)
    return error;
  *info = {};
  Fill(entry, info);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned number,
                                                 nvmlGpuInstanceProfileInfo_v2_t* info) {
  MigProfileEntry entry;
  if (nvmlReturn_t error = ByNumber(handle, number, &entry); error != NVML_SUCCESS) return error;
  return GoodVersion(info) ? FillVersioned(entry, info) : NVML_ERROR_INVALID_ARGUMENT;
}
GPUMUX_NVML nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t handle, unsigned id,
                                                     nvmlGpuInstanceProfileInfo_v2_t* info) {
  Device* device = nullptr;
  MigState mig;
  if (nvmlReturn_t error = GpuWithMig(handle, &device, &mig); error != NVML_SUCCESS) return error;
  if (mig.enabled == 0) return NVML_ERROR_NOT_SUPPORTED;
  MigProfileList list;
  if (nvmlReturn_t error = Profiles(*device, &list); error != NVML_SUCCESS) return error;
  const MigProfileEntry* entry = ById(list, id);
  return entry != nullptr && GoodVersion(info) ? FillVersioned(*entry, info) : NVML_ERROR_INVALID_ARGUMENT;
}

GPUMUX_NVML nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned id,
                                                          nvmlGpuInstancePlacement_t* placements,
                                                          unsigned* count) {
  Device* device = nullptr;
  MigState mig;
  if (nvmlReturn_t error = CheckOut(GpuWithMig(handle, &device, &mig), count); error != NVML_SUCCESS)
    return error;
  if (!MayLookNow()) return NVML_ERROR_NO_PERMISSION;
  MigProfileList list;
  if (nvmlReturn_t error = Profiles(*device, &list); error != NVML_SUCCESS) return error;
  const MigProfileEntry* entry = ById(list, id);
  if (entry == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (uint32_t i = 0; placements != nullptr && i < entry->start_count; ++i)
    placements[i] = {entry->starts[i], entry->memory_slices};
  *count = entry->start_count;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned id, unsigned* count) {
  GPUMUX_NVML_DEVICE(device, handle, count);
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kMigRoom, &reply, id); error != NVML_SUCCESS) return error;
  *count = static_cast<unsigned>(reply.values[0]);
  return NVML_SUCCESS;
}

// --- GPU instances

namespace {
nvmlReturn_t Create(nvmlDevice_t handle, unsigned profile, uint64_t start, nvmlGpuInstance_t* out) {
  GPUMUX_NVML_DEVICE(device, handle, out);
  softgpu::Reply reply;
  if (nvmlReturn_t error = Call(handle, Op::kMigCreate, &reply, profile, start); error != NVML_SUCCESS)
    return error;
  *out = HandleOf(device, static_cast<uint32_t>(reply.values[0]));
  return NVML_SUCCESS;
}
}  // namespace

GPUMUX_NVML nvmlDeviceCreateGpuInstance(nvmlDevice_t handle, unsigned profile, nvmlGpuInstance_t* out) {
  return Create(handle, profile, 0, out);
}
GPUMUX_NVML nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t handle, unsigned id,
                                                     const nvmlGpuInstancePlacement_t* placement,
                                                     nvmlGpuInstance_t* out) {
  GPUMUX_NVML_DEVICE(device, handle, placement, out);
  MigProfileList list;
  if (nvmlReturn_t error = Profiles(*device, &list); error != NVML_SUCCESS) return error;
  const MigProfileEntry* entry = ById(list, id);
  if (entry != nullptr && placement->size != entry->memory_slices) return NVML_ERROR_INVALID_ARGUMENT;
  return Create(handle, id, static_cast<uint64_t>(placement->start) + 1, out);
}

GPUMUX_NVML nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
  FoundInstance found;
  if (nvmlReturn_t error = Find(handle, &found); error != NVML_SUCCESS) return error;
  softgpu::Reply reply;
  return Call(reinterpret_cast<nvmlDevice_t>(found.device), Op::kMigDestroy, &reply, 0, found.entry.number);
}

GPUMUX_NVML nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t* out,
                                      unsigned* count) {
  Device* device = nullptr;
  MigState mig;
  if (nvmlReturn_t error = CheckOut(Look(handle, &device, &mig), out, count); error != NVML_SUCCESS)
    return error;
  MigProfileList list;
  if (nvmlReturn_t error = Profiles(*device, &list); error != NVML_SUCCESS) return error;
  if (ById(list, id) == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned found = 0;
  for (uint32_t i = 0; i < mig.instance_count; ++i) {
    if (mig.instances[i].profile == id) out[found++] = HandleOf(device, mig.instances[i].number);
  }
  *count = found;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t* out) {
  Device* device = nullptr;
  MigState mig;
  if (nvmlReturn_t error = CheckOut(Look(handle, &device, &mig), out); error != NVML_SUCCESS) return error;
  for (uint32_t i = 0; i < mig.instance_count; ++i) {
    if (mig.instances[i].id != id) continue;
    *out = HandleOf(device, mig.instances[i].number);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

GPUMUX_NVML nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t* info) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(Find(handle, &found), info); error != NVML_SUCCESS) return error;
  *info = {.device = reinterpret_cast<nvmlDevice_t>(found.device),
           .id = found.entry.id,
           .profileId = found.entry.profile,
           .placement = {found.entry.start, found.profile.memory_slices}};
  return NVML_SUCCESS;
}

}  // namespace gpumux::nvml
