// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cuda_functions.h"
#include "gpumux/abi/nvml/mig.h"

namespace gpumux::test {

using nvml::nvmlComputeInstance_t;
using nvml::nvmlDevice_t;
using nvml::nvmlGpuInstance_t;
using nvml::nvmlReturn_t;

// NVML's calls about MIG in short, each with its result.
inline nvmlDevice_t GpuHandle(unsigned index) {
  NVML(nvmlInit_v2, )();
  nvmlDevice_t device = nullptr;
  NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvmlDevice_t*)(index, &device);
  return device;
}
// What became of it; the call's own result where that is an error.
inline nvmlReturn_t SetMig(nvmlDevice_t gpu, bool on) {
  nvmlReturn_t activation = nvml::NVML_ERROR_UNKNOWN;
  const auto result = NVML(nvmlDeviceSetMigMode, nvmlDevice_t, unsigned, nvmlReturn_t*)(gpu, on, &activation);
  return result != nvml::NVML_SUCCESS ? result : activation;
}
// "1 0": current and pending.
inline std::string Modes(nvmlDevice_t gpu) {
  unsigned current = 9, pending = 9;
  const auto result = NVML(nvmlDeviceGetMigMode, nvmlDevice_t, unsigned*, unsigned*)(gpu, &current, &pending);
  return result == nvml::NVML_SUCCESS ? std::to_string(current) + " " + std::to_string(pending)
                                      : "error " + std::to_string(result);
}
inline nvmlReturn_t CreateGi(nvmlDevice_t gpu, unsigned profile, nvmlGpuInstance_t* out) {
  return NVML(nvmlDeviceCreateGpuInstance, nvmlDevice_t, unsigned, nvmlGpuInstance_t*)(gpu, profile, out);
}
inline nvmlReturn_t CreateGi(nvmlDevice_t gpu, unsigned profile, unsigned start, unsigned size,
                             nvmlGpuInstance_t* out) {
  const nvml::nvmlGpuInstancePlacement_t placement{start, size};
  return NVML(nvmlDeviceCreateGpuInstanceWithPlacement, nvmlDevice_t, unsigned,
              const nvml::nvmlGpuInstancePlacement_t*, nvmlGpuInstance_t*)(gpu, profile, &placement, out);
}
inline nvmlReturn_t DestroyGi(nvmlGpuInstance_t instance) {
  return NVML(nvmlGpuInstanceDestroy, nvmlGpuInstance_t)(instance);
}
inline nvmlReturn_t CreateCi(nvmlGpuInstance_t instance, unsigned profile, nvmlComputeInstance_t* out) {
  return NVML(nvmlGpuInstanceCreateComputeInstance, nvmlGpuInstance_t, unsigned, nvmlComputeInstance_t*)(
      instance, profile, out);
}
inline nvmlReturn_t DestroyCi(nvmlComputeInstance_t compute) {
  return NVML(nvmlComputeInstanceDestroy, nvmlComputeInstance_t)(compute);
}
inline nvmlReturn_t RoomFor(nvmlDevice_t gpu, unsigned profile, unsigned* count) {
  return NVML(nvmlDeviceGetGpuInstanceRemainingCapacity, nvmlDevice_t, unsigned, unsigned*)(gpu, profile,
                                                                                            count);
}
inline unsigned Room(nvmlDevice_t gpu, unsigned profile) {
  unsigned count = 99;
  EXPECT_EQ(RoomFor(gpu, profile, &count), nvml::NVML_SUCCESS);
  return count;
}
inline nvmlReturn_t MigByIndex(nvmlDevice_t gpu, unsigned index, nvmlDevice_t* out) {
  return NVML(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t, unsigned, nvmlDevice_t*)(gpu, index, out);
}
inline std::string UuidText(nvmlDevice_t device) {
  char text[96] = {};
  const auto result = NVML(nvmlDeviceGetUUID, nvmlDevice_t, char*, unsigned)(device, text, sizeof text);
  return result == nvml::NVML_SUCCESS ? text : "error " + std::to_string(result);
}
inline std::string NameText(nvmlDevice_t device) {
  char text[96] = {};
  const auto result = NVML(nvmlDeviceGetName, nvmlDevice_t, char*, unsigned)(device, text, sizeof text);
  return result == nvml::NVML_SUCCESS ? text : "error " + std::to_string(result);
}
// A GPU instance of the profile with one compute instance of all of it: its MIG device's UUID.
inline std::string MakeMigDevice(nvmlDevice_t gpu, unsigned profile, unsigned compute_profile) {
  nvmlGpuInstance_t instance = nullptr;
  nvmlComputeInstance_t compute = nullptr;
  EXPECT_EQ(CreateGi(gpu, profile, &instance), nvml::NVML_SUCCESS);
  EXPECT_EQ(CreateCi(instance, compute_profile, &compute), nvml::NVML_SUCCESS);
  std::string last;
  for (unsigned index = 0; index < 7; ++index) {
    nvmlDevice_t device = nullptr;
    if (MigByIndex(gpu, index, &device) == nvml::NVML_SUCCESS) last = UuidText(device);
  }
  return last;
}
// Profiles of an H200, as of every GPU with seven compute slices, and of compute instances.
inline constexpr unsigned k1g = 19, k1gMe = 20, k1gDouble = 15, k2g = 14, k3g = 9, k4g = 5, k7g = 0;
inline constexpr unsigned k1c = 0, k2c = 1, k3c = 2, k4c = 3, k7c = 4;

}  // namespace gpumux::test
