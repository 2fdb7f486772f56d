// SPDX-License-Identifier: Apache-2.0
//
// The MIG part of the fake NVML: with FAKE_NVML_MIG in the environment a driver whose every count is beyond
// reason and whose texts have no end; without it a GPU that has no MIG.
#include <cstdlib>
#include <cstring>

#include "gpumux/abi/nvml/mig.h"

using namespace gpumux::nvml;

#define EXPORT extern "C" __attribute__((visibility("default"))) nvmlReturn_t

namespace {
constexpr unsigned kBeyondReason = 4'000'000'000;
bool On() { return getenv("FAKE_NVML_MIG") != nullptr; }
}  // namespace

EXPORT nvmlDeviceGetMigMode(nvmlDevice_t, unsigned* current, unsigned* pending) {
  if (!On()) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = kMigEnable;
  return NVML_SUCCESS;
}
// Every number is a profile.
EXPORT nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t, unsigned number,
                                            nvmlGpuInstanceProfileInfo_v3_t* info) {
  if (!On()) return NVML_ERROR_NOT_SUPPORTED;
  if (info->version != kGpuInstanceProfileV3) return NVML_ERROR_INVALID_ARGUMENT;
  info->id = number;
  memset(info->name, 'x', sizeof info->name);
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t, unsigned, nvmlGpuInstancePlacement_t*,
                                                     unsigned* count) {
  *count = kBeyondReason;
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetGpuInstances(nvmlDevice_t, unsigned, nvmlGpuInstance_t*, unsigned* count) {
  *count = kBeyondReason;
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t, unsigned* count) {
  *count = On() ? kBeyondReason : 0;
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned, nvmlDevice_t* out) {
  *out = device;
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetGpuInstanceId(nvmlDevice_t, unsigned* id) { return *id = 1, NVML_SUCCESS; }
EXPORT nvmlDeviceGetComputeInstanceId(nvmlDevice_t, unsigned* id) { return *id = 0, NVML_SUCCESS; }
