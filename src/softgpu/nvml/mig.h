// SPDX-License-Identifier: Apache-2.0
//
// What the entry points about MIG share. What there is is read from the server at each call; it decides
// on changes, too.
#pragma once

#include "gpumux/abi/nvml/mig.h"
#include "softgpu/nvml/state.h"

// What an nvmlGpuInstance_t and an nvmlComputeInstance_t point to. They are kept for good: a handle
// of something that is no more has to be known as such.
struct gpumux_softgpu_gpu_instance {
  gpumux::nvml::Device* device;
  uint32_t number;
};
struct gpumux_softgpu_compute_instance {
  gpumux::nvml::Device* device;
  uint32_t place;
};

namespace gpumux::nvml {

using GpuInstance = gpumux_softgpu_gpu_instance;
using ComputeInstance = gpumux_softgpu_compute_instance;
using softgpu::MigComputeInstanceEntry;
using softgpu::MigInstanceEntry;
using softgpu::MigProfileEntry;
using softgpu::MigProfileList;
using softgpu::MigState;

// With the lock held.
nvmlReturn_t Read(State& state, const Device& gpu, MigState* mig);

// Whether MIG is enabled on the GPU (of a MIG device: false). This and what follows takes the lock.
bool MigOn(nvmlDevice_t handle);
// Whether this process may see what is not everybody's.
bool MayLookNow();
// The figures of a whole GPU with MIG on are for those who may look at MIG.
bool MayReadAll(nvmlDevice_t handle);
// By what nvmlDeviceGetUUID says of it.
nvmlReturn_t FindMigDevice(const char* uuid, nvmlDevice_t* out);

// The GPU of `handle` with its state of MIG. NOT_SUPPORTED without MIG, and of a MIG device.
nvmlReturn_t GpuWithMig(nvmlDevice_t handle, Device** device, MigState* mig);
// The same with MIG on, for those who may look.
nvmlReturn_t Look(nvmlDevice_t handle, Device** device, MigState* mig);
nvmlReturn_t Profiles(const Device& device, MigProfileList* list);
// Null: there is none.
const MigProfileEntry* ById(const MigProfileList& list, uint32_t id);
const MigInstanceEntry* EntryOf(const MigState& mig, uint32_t number);

nvmlGpuInstance_t HandleOf(Device* device, uint32_t number);
nvmlComputeInstance_t ComputeHandleOf(Device* device, uint32_t place);

// An instance that there is, with its GPU and the profile of the GPU instance. INVALID_ARGUMENT: there is
// none (any more).
struct FoundInstance {
  Device* device = nullptr;
  MigState mig;
  MigInstanceEntry entry;
  MigProfileEntry profile;
};
nvmlReturn_t Find(nvmlGpuInstance_t handle, FoundInstance* found);
nvmlReturn_t Find(nvmlComputeInstance_t handle, MigComputeInstanceEntry* entry, FoundInstance* instance);

}  // namespace gpumux::nvml
