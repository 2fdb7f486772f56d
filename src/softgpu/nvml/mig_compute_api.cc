// SPDX-License-Identifier: Apache-2.0
//
// Compute instances of GPU instances.
#include <cstdio>
#include <span>
#include <string>

#include "gpu/mig_models.h"
#include "softgpu/compute_starts.h"
#include "softgpu/nvml/mig.h"

namespace gpumux::nvml {

using softgpu::Op;

namespace {

// NVML 13.0 knows numbers of profiles below this.
constexpr unsigned kComputeProfileNumbers = 8;
constexpr unsigned kComputeCapabilityGfx = 1;

template <typename Info>
void FillCompute(const MigProfileEntry& of, uint32_t id, Info* info) {
  const softgpu::MigComputeEntry& entry = of.compute[id];
  info->id = id;
  info->sliceCount = entry.slices;
  info->instanceCount = entry.count;
  info->multiprocessorCount = entry.sms;
  info->sharedCopyEngineCount = of.copy;
  info->sharedDecoderCount = of.nvdec;
  info->sharedEncoderCount = of.nvenc;
  info->sharedJpegCount = of.jpeg;
  info->sharedOfaCount = of.ofa;
  const bool whole = entry.slices == of.compute_slices;
  if constexpr (requires { info->name; })
    snprintf(info->name, sizeof(info->name), "MIG %s%s",
             whole ? "" : (std::to_string(entry.slices) + "c.").c_str(), of.name);
  if constexpr (requires { info->capabilities; })
    info->capabilities =
        static_cast<gpu::MigAttribute>(of.attribute) == gpu::MigAttribute::kGfx ? kComputeCapabilityGfx : 0;
}

nvmlReturn_t ComputeProfile(nvmlGpuInstance_t handle, unsigned number, unsigned engines,
                            FoundInstance* found) {
  if (nvmlReturn_t error = Find(handle, found); error != NVML_SUCCESS) return error;
  if (number >= kComputeProfileNumbers || engines != kComputeEnginesShared)
    return NVML_ERROR_INVALID_ARGUMENT;
  // NVML's numbers are the profiles' ids for those that there are here.
  return number < softgpu::kMigComputeProfiles && found->profile.compute[number].slices > 0
             ? NVML_SUCCESS
             : NVML_ERROR_NOT_SUPPORTED;
}

}  // namespace

GPUMUX_NVML nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned number,
                                                         unsigned engines,
                                                         nvmlComputeInstanceProfileInfo_t* info) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(ComputeProfile(handle, number, engines, &found), info);
      error != NVML_SUCCESS)
    return error;
  FillCompute(found.profile, number, info);
  return NVML_SUCCESS;
}
GPUMUX_NVML nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned number,
                                                          unsigned engines,
                                                          nvmlComputeInstanceProfileInfo_v2_t* info) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(ComputeProfile(handle, number, engines, &found), info);
      error != NVML_SUCCESS)
    return error;
  if (info->version == kComputeInstanceProfileV2) {
    FillCompute(found.profile, number, info);
  } else if (info->version == kComputeInstanceProfileV3) {
    FillCompute(found.profile, number, reinterpret_cast<nvmlComputeInstanceProfileInfo_v3_t*>(info));
  } else {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t handle, unsigned id,
                                                               unsigned* count) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(Find(handle, &found), count); error != NVML_SUCCESS) return error;
  softgpu::Reply reply;
  const auto device = reinterpret_cast<nvmlDevice_t>(found.device);
  if (nvmlReturn_t error = Call(device, Op::kMigComputeRoom, &reply, id, found.entry.number);
      error != NVML_SUCCESS)
    return error;
  *count = static_cast<unsigned>(reply.values[0]);
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t handle, unsigned id,
                                                                nvmlComputeInstancePlacement_t* placements,
                                                                unsigned* count) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(Find(handle, &found), count); error != NVML_SUCCESS) return error;
  if (!MayLookNow()) return NVML_ERROR_NO_PERMISSION;
  if (id >= softgpu::kMigComputeProfiles || found.profile.compute[id].slices == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  const uint32_t slices = found.profile.compute[id].slices;
  unsigned places = 0;
  for (uint32_t start : softgpu::ComputeStarts(found.profile.compute_slices, slices)) {
    if (placements != nullptr) placements[places] = {start, slices};
    ++places;
  }
  *count = places;
  return NVML_SUCCESS;
}

namespace {
nvmlReturn_t CreateCompute(nvmlGpuInstance_t handle, unsigned id, uint64_t start,
                           nvmlComputeInstance_t* out) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(Find(handle, &found), out); error != NVML_SUCCESS) return error;
  softgpu::Reply reply;
  const auto device = reinterpret_cast<nvmlDevice_t>(found.device);
  if (nvmlReturn_t error = Call(device, Op::kMigCreateCompute, &reply, id | start << 32, found.entry.number);
      error != NVML_SUCCESS)
    return error;
  *out = ComputeHandleOf(found.device, static_cast<uint32_t>(reply.values[0]));
  return NVML_SUCCESS;
}
}  // namespace

GPUMUX_NVML nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned id,
                                                 nvmlComputeInstance_t* out) {
  return CreateCompute(handle, id, 0, out);
}
GPUMUX_NVML nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t handle, unsigned id,
                                                              const nvmlComputeInstancePlacement_t* placement,
                                                              nvmlComputeInstance_t* out) {
  if (placement == nullptr || placement->start > 64) return NVML_ERROR_INVALID_ARGUMENT;
  return CreateCompute(handle, id, static_cast<uint64_t>(placement->start) + 1, out);
}

GPUMUX_NVML nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
  MigComputeInstanceEntry entry;
  FoundInstance instance;
  if (nvmlReturn_t error = Find(handle, &entry, &instance); error != NVML_SUCCESS) return error;
  softgpu::Reply reply;
  return Call(reinterpret_cast<nvmlDevice_t>(instance.device), Op::kMigDestroyCompute, &reply, 0,
              entry.place);
}

GPUMUX_NVML nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned id,
                                               nvmlComputeInstance_t* out, unsigned* count) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(Find(handle, &found), out, count); error != NVML_SUCCESS) return error;
  if (!MayLookNow()) return NVML_ERROR_NO_PERMISSION;
  if (id >= softgpu::kMigComputeProfiles || found.profile.compute[id].slices == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  unsigned listed = 0;
  for (uint32_t i = 0; i < found.mig.compute_count; ++i) {
    const MigComputeInstanceEntry& entry = found.mig.computes[i];
    if (entry.instance == found.entry.number && entry.profile == id)
      out[listed++] = ComputeHandleOf(found.device, entry.place);
  }
  *count = listed;
  return NVML_SUCCESS;
}

GPUMUX_NVML nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned id,
                                                  nvmlComputeInstance_t* out) {
  FoundInstance found;
  if (nvmlReturn_t error = CheckOut(Find(handle, &found), out); error != NVML_SUCCESS) return error;
  if (!MayLookNow()) return NVML_ERROR_NO_PERMISSION;
  for (uint32_t i = 0; i < found.mig.compute_count; ++i) {
    const MigComputeInstanceEntry& entry = found.mig.computes[i];
    if (entry.instance != found.entry.number || entry.id != id) continue;
    *out = ComputeHandleOf(found.device, entry.place);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

GPUMUX_NVML nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t* info) {
  MigComputeInstanceEntry entry;
  FoundInstance instance;
  if (nvmlReturn_t error = CheckOut(Find(handle, &entry, &instance), info); error != NVML_SUCCESS)
    return error;
  *info = {.device = reinterpret_cast<nvmlDevice_t>(instance.device),
           .gpuInstance = HandleOf(instance.device, instance.entry.number),
           .id = entry.id,
           .profileId = entry.profile,
           .placement = {entry.start, instance.profile.compute[entry.profile].slices}};
  return NVML_SUCCESS;
}

}  // namespace gpumux::nvml
