// SPDX-License-Identifier: Apache-2.0
#include "sim/slab_layout.h"
#include "softgpu/driver/api.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

GPUMUX_CU cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp* prop,
                                        CUmemAllocationGranularity_flags option) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr || prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      Driver::Get().FindDevice(prop->location.id) == nullptr) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *out = sim::kPageBytes;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* prop,
                      unsigned long long flags) {
  GPUMUX_REQUIRE_INIT();
  if (prop == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().CreateHandle(*prop, bytes, out);
}
GPUMUX_CU cuMemRelease(CUmemGenericAllocationHandle handle) {
  GPUMUX_REQUIRE_INIT();
  return Memory::Get().ReleaseHandle(handle);
}
GPUMUX_CU cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  GPUMUX_REQUIRE_INIT();
  return Memory::Get().RetainHandle(reinterpret_cast<uint64_t>(address), out);
}
GPUMUX_CU cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                 CUmemGenericAllocationHandle handle) {
  GPUMUX_REQUIRE_INIT();
  return Memory::Get().HandleProperties(handle, prop);
}
GPUMUX_CU cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment, CUdeviceptr hint,
                              unsigned long long flags) {
  GPUMUX_REQUIRE_INIT();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Reserve(bytes, alignment, hint, out);
}
GPUMUX_CU cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  GPUMUX_REQUIRE_INIT();
  return Memory::Get().FreeReservation(base, bytes);
}
GPUMUX_CU cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                   unsigned long long flags) {
  GPUMUX_REQUIRE_INIT();
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Map(address, bytes, handle);
}
GPUMUX_CU cuMemUnmap(CUdeviceptr address, size_t bytes) {
  GPUMUX_REQUIRE_INIT();
  return Memory::Get().Unmap(address, bytes);
}
GPUMUX_CU cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  GPUMUX_REQUIRE_INIT();
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
        Driver::Get().FindDevice(access[i].location.id) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (CUresult error = Memory::Get().SetAccess(address, bytes, access[i].flags); error != CUDA_SUCCESS)
      return error;
  }
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  GPUMUX_REQUIRE_INIT();
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().GetAccess(address, flags);
}

}  // namespace gpumux::softgpu
