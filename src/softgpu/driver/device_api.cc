// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "softgpu/driver/api.h"
#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/driver.h"
#include "softgpu/names.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

#define REQUIRE_DEVICE(name, ordinal)               \
  GPUMUX_REQUIRE_INIT();                            \
  Device* name = Driver::Get().FindDevice(ordinal); \
  if (name == nullptr) return CUDA_ERROR_INVALID_DEVICE

GPUMUX_CU cuDeviceGetCount(int* count) {
  GPUMUX_REQUIRE_INIT();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(Driver::Get().devices().size());
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGet(CUdevice* out, int ordinal) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Driver::Get().FindDevice(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *out = ordinal;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  REQUIRE_DEVICE(device, ordinal);
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(length), "%s", device->description.name);
  return CUDA_SUCCESS;
}

namespace {
CUresult Uuid(CUuuid* out, CUdevice ordinal, GpuUuid Device::* which) {
  REQUIRE_DEVICE(device, ordinal);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(out->bytes, (device->*which).bytes, sizeof(out->bytes));
  return CUDA_SUCCESS;
}
}  // namespace
// The second version tells MIG devices apart.
GPUMUX_CU cuDeviceGetUuid(CUuuid* out, CUdevice device) { return Uuid(out, device, &Device::gpu_uuid); }
GPUMUX_CU cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) { return Uuid(out, device, &Device::uuid); }

GPUMUX_CU cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  REQUIRE_DEVICE(device, ordinal);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->description.usable;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGetAttribute(int* value, int attribute, CUdevice ordinal) {
  REQUIRE_DEVICE(device, ordinal);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr int kComputeMode = 20;  // the one attribute that can change
  if (attribute == CU_DEVICE_ATTRIBUTE_MPS_ENABLED) {
    *value = device->mps ? 1 : 0;
    return CUDA_SUCCESS;
  }
  if (attribute == kComputeMode) {
    const auto mode = Driver::Get().ComputeMode(*device);
    if (!mode) return CUDA_ERROR_UNKNOWN;
    *value = *mode;
    return CUDA_SUCCESS;
  }
  const auto found = DeviceAttribute(attribute, device->description);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  *value = *found;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  REQUIRE_DEVICE(device, ordinal);
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = device->description.major;
  *minor = device->description.minor;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGetPCIBusId(char* out, int length, CUdevice ordinal) {
  REQUIRE_DEVICE(device, ordinal);
  if (out == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(out, static_cast<size_t>(length), "%04X:%02X:00.0", 0, PciBus(device->description.parent));
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGetByPCIBusId(CUdevice* out, const char* text) {
  GPUMUX_REQUIRE_INIT();
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (out == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
    domain = 0;
    if (sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const auto& device : Driver::Get().devices()) {
    if (domain == 0 && slot == 0 && bus == PciBus(device->description.parent)) {
      *out = device->ordinal;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

GPUMUX_CU cuDeviceCanAccessPeer(int* can, CUdevice a, CUdevice b) {
  REQUIRE_DEVICE(first, a);
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Driver::Get().FindDevice(b) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = 0;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGetProperties(int* properties, CUdevice ordinal) {
  // struct CUdevprop: ten numbers, in this order.
  REQUIRE_DEVICE(device, ordinal);
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr int kFields[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  for (size_t i = 0; i < std::size(kFields); ++i)
    properties[i] = *DeviceAttribute(kFields[i], device->description);
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
