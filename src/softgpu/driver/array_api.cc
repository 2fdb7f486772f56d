// SPDX-License-Identifier: Apache-2.0
//
// Arrays: made, described, destroyed. Copies are in copy_api.cc; textures and
// surfaces do not exist here, and sparse and deferred arrays get no memory.
#include "sim/slab_layout.h"
#include "softgpu/driver/api.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/engine.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult Create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Array* array = nullptr;
  if (CUresult error = Arrays::Get().Create(context, descriptor, &array); error != CUDA_SUCCESS) return error;
  *out = reinterpret_cast<CUarray>(array);
  return CUDA_SUCCESS;
}

#define REQUIRE_ARRAY(name, handle) \
  GPUMUX_REQUIRE_CONTEXT(context);  \
  Array name;                       \
  if (!Arrays::Get().Find(handle, &(name))) return CUDA_ERROR_INVALID_HANDLE

#define REQUIRE_MIPMAPPED(name, handle) \
  GPUMUX_REQUIRE_CONTEXT(context);      \
  MipmappedArray name;                  \
  if (!Arrays::Get().FindMipmapped(handle, &(name))) return CUDA_ERROR_INVALID_HANDLE

struct MemoryRequirements {
  size_t size, alignment;
  unsigned reserved[4];
};
struct SparseProperties {
  unsigned tile_width, tile_height, tile_depth;
  unsigned tail_first_level;
  unsigned long long tail_bytes;
  unsigned flags;
  unsigned reserved[4];
};
constexpr unsigned kSparse = 0x40, kDeferred = 0x80;
constexpr size_t kTileBytes = 65536;

CUresult Requirements(MemoryRequirements* out, uint64_t bytes, unsigned flags, CUdevice ordinal) {
  if (Driver::Get().FindDevice(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr || (flags & kDeferred) == 0) return CUDA_ERROR_INVALID_VALUE;
  *out = {sim::RoundUp(bytes, kTileBytes), kTileBytes, {}};
  return CUDA_SUCCESS;
}

// A tile has 64 KiB: as square as powers of two allow.
CUresult Sparse(SparseProperties* out, const Array& array, unsigned flags) {
  if (out == nullptr || (flags & kSparse) == 0) return CUDA_ERROR_INVALID_VALUE;
  unsigned width = 1, height = 1;
  while (static_cast<uint64_t>(width) * height * array.element_bytes < kTileBytes) {
    (width <= height ? width : height) *= 2;
  }
  *out = {width, height, 1, 0, 0, 0, {}};
  return CUDA_SUCCESS;
}

}  // namespace

GPUMUX_CU cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  GPUMUX_REQUIRE_INIT();
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full = {};
  full.Width = descriptor->Width;
  full.Height = descriptor->Height;
  full.Format = descriptor->Format;
  full.NumChannels = descriptor->NumChannels;
  return Create(out, full);
}
GPUMUX_CU cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  GPUMUX_REQUIRE_INIT();
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Create(out, *descriptor);
}
GPUMUX_CU cuArrayDestroy(CUarray array) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  // As any free: what is under way may still use it.
  if (CUresult error = Engine::Get().SynchronizeContext(context); error != CUDA_SUCCESS) return error;
  return Arrays::Get().Destroy(array);
}
GPUMUX_CU cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  REQUIRE_ARRAY(array, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = array.descriptor;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  REQUIRE_ARRAY(array, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_ARRAY3D_DESCRIPTOR& full = array.descriptor;
  *out = {full.Width, full.Height, full.Format, full.NumChannels};
  return CUDA_SUCCESS;
}
GPUMUX_CU cuArrayGetMemoryRequirements(MemoryRequirements* out, CUarray handle, CUdevice device) {
  REQUIRE_ARRAY(array, handle);
  return Requirements(out, array.device_bytes, array.descriptor.Flags, device);
}
GPUMUX_CU cuArrayGetSparseProperties(SparseProperties* out, CUarray handle) {
  REQUIRE_ARRAY(array, handle);
  return Sparse(out, array, array.descriptor.Flags);
}
GPUMUX_CU cuArrayGetPlane(CUarray*, CUarray handle, unsigned) {
  // Formats of several planes are refused when an array is made.
  REQUIRE_ARRAY(array, handle);
  return CUDA_ERROR_INVALID_VALUE;
}

GPUMUX_CU cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                 unsigned levels) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if (out == nullptr || descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MipmappedArray* mipmapped = nullptr;
  if (CUresult error = Arrays::Get().CreateMipmapped(context, *descriptor, levels, &mipmapped);
      error != CUDA_SUCCESS)
    return error;
  *out = reinterpret_cast<CUmipmappedArray>(mipmapped);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned level) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Array* array = nullptr;
  if (CUresult error = Arrays::Get().GetLevel(handle, level, &array); error != CUDA_SUCCESS) return error;
  *out = reinterpret_cast<CUarray>(array);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if (CUresult error = Engine::Get().SynchronizeContext(context); error != CUDA_SUCCESS) return error;
  return Arrays::Get().DestroyMipmapped(handle);
}
GPUMUX_CU cuMipmappedArrayGetMemoryRequirements(MemoryRequirements* out, CUmipmappedArray handle,
                                                CUdevice device) {
  REQUIRE_MIPMAPPED(mipmapped, handle);
  return Requirements(out, mipmapped.device_bytes, mipmapped.flags, device);
}
GPUMUX_CU cuMipmappedArrayGetSparseProperties(SparseProperties* out, CUmipmappedArray handle) {
  REQUIRE_MIPMAPPED(mipmapped, handle);
  return Sparse(out, *mipmapped.levels[0], mipmapped.flags);
}

}  // namespace gpumux::softgpu
