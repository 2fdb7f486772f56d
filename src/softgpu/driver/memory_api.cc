// SPDX-License-Identifier: Apache-2.0
//
// Plain, pitched and managed memory, host memory, and queries.
#include <cstring>
#include <optional>

#include "sim/slab_layout.h"
#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

GPUMUX_CU cuMemGetInfo_v2(size_t* free, size_t* total) {
  GPUMUX_REQUIRE_CONTEXT(context);
  const auto memory = Driver::Get().QueryMemory(*context->device);
  if (!memory) return CUDA_ERROR_UNKNOWN;
  if (free != nullptr) *free = memory->free;
  if (total != nullptr) *total = memory->total;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().AllocPlain(context, bytes, out);
}

GPUMUX_CU cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height, unsigned element) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if (pitch == nullptr || width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  if (width > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t row = sim::RoundPitch(width);
  if (height > sim::kMaxAllocationBytes / row) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Memory::Get().AllocPlain(context, row * height, out);
  if (result == CUDA_SUCCESS) *pitch = row;
  return result;
}

GPUMUX_CU cuMemFree_v2(CUdeviceptr pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  const CUresult result = Memory::Get().Free(pointer);
  return result;
}

GPUMUX_CU cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().AllocManaged(context, bytes, flags, out);
}

GPUMUX_CU cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  const auto range = Memory::Get().Find(pointer);
  if (!range || !range->on_device()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range->base;
  if (size != nullptr) *size = range->size;
  return CUDA_SUCCESS;
}

GPUMUX_CU cuMemAllocHost_v2(void** out, size_t bytes) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().AllocHost(context, bytes, 0, out);
}
GPUMUX_CU cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if ((flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().AllocHost(context, bytes, flags, out);
}
GPUMUX_CU cuMemFreeHost(void* pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().FreeHost(pointer);
}
GPUMUX_CU cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  if ((flags & ~15u) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().Register(context, pointer, bytes, flags);
}
GPUMUX_CU cuMemHostUnregister(void* pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().Unregister(pointer);
}
GPUMUX_CU cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = Memory::Get().Find(reinterpret_cast<uint64_t>(pointer));
  if (!range || range->on_device()) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMemHostGetFlags(unsigned* flags, void* pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  const auto range = Memory::Get().Find(reinterpret_cast<uint64_t>(pointer));
  if (flags == nullptr || !range || range->on_device()) return CUDA_ERROR_INVALID_VALUE;
  *flags = range->flags;
  return CUDA_SUCCESS;
}

// --- what a pointer is

namespace {

enum Attribute {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kSyncMemops = 6,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIpcCapable = 10,
  kRangeStart = 11,
  kRangeSize = 12,
  kMapped = 13,
  kHandleTypes = 14,
  kRdmaCapable = 15,
  kAccessFlags = 16,
  kPoolHandle = 17,
  kMappingSize = 18,
  kMappingBase = 19,
  kBlockId = 20,
};
constexpr unsigned kTypeHost = 1, kTypeDevice = 2;

// What cuPointerGetAttributes stores for a pointer that the driver does not
// know: the value that stands for nothing.
CUresult Describe(const std::optional<Range>& range, CUdeviceptr pointer, int attribute, void* out) {
  const auto set = [out](auto value) { memcpy(out, &value, sizeof(value)); };
  if (!range) {
    switch (attribute) {
      case kDeviceOrdinal:
        set(int{-2});
        break;
      case kMemoryType:
      case kIsManaged:
      case kSyncMemops:
      case kMapped:
      case kIpcCapable:
      case kRdmaCapable:
      case kAccessFlags:
        set(unsigned{0});
        break;
      default:
        set(uint64_t{0});
    }
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool on_device = range->on_device();
  const bool managed = range->kind == Range::Kind::kManaged;
  switch (attribute) {
    case kContext:
      set(range->context != nullptr && range->kind != Range::Kind::kMapped &&
                  range->kind != Range::Kind::kPooled
              ? Handle(range->context)
              : nullptr);
      return CUDA_SUCCESS;
    case kMemoryType:
      set(on_device ? kTypeDevice : kTypeHost);
      return CUDA_SUCCESS;
    case kDevicePointer:
      set(pointer);
      return CUDA_SUCCESS;
    case kHostPointer:
      if (on_device && !managed) return CUDA_ERROR_INVALID_VALUE;
      set(pointer);
      return CUDA_SUCCESS;
    case kIpcCapable:
      set(int{range->kind == Range::Kind::kSmall || range->kind == Range::Kind::kPlain});
      return CUDA_SUCCESS;
    case kSyncMemops:
    case kRdmaCapable:
      set(int{0});
      return CUDA_SUCCESS;
    case kBufferId:
    case kBlockId:
      set(static_cast<uint64_t>(range->kind == Range::Kind::kMapped ? range->handle : range->id));
      return CUDA_SUCCESS;
    case kIsManaged:
      set(static_cast<unsigned>(managed));
      return CUDA_SUCCESS;
    case kDeviceOrdinal:
      set(range->device != nullptr ? range->device->ordinal : -1);
      return CUDA_SUCCESS;
    case kRangeStart:
    case kMappingBase:
      set(range->base);
      return CUDA_SUCCESS;
    case kRangeSize:
    case kMappingSize:
      set(range->size);
      return CUDA_SUCCESS;
    case kMapped:
      set(int{1});
      return CUDA_SUCCESS;
    case kHandleTypes:
      set(uint64_t{0});
      return CUDA_SUCCESS;
    case kAccessFlags:
      set(range->kind == Range::Kind::kMapped ? range->access : 3u);
      return CUDA_SUCCESS;
    case kPoolHandle:
      set(reinterpret_cast<CUmemoryPool>(range->pool));
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

GPUMUX_CU cuPointerGetAttribute(void* out, int attribute, CUdeviceptr pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto range = Memory::Get().Find(pointer);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  return Describe(range, pointer, attribute, out);
}

GPUMUX_CU cuPointerGetAttributes(unsigned count, int* attributes, void** out, CUdeviceptr pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (attributes == nullptr || out == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = Memory::Get().Find(pointer);
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] < kContext || attributes[i] > 21) return CUDA_ERROR_INVALID_VALUE;
    if (Describe(range, pointer, attributes[i], out[i]) != CUDA_SUCCESS && attributes[i] == kHostPointer) {
      const void* none = nullptr;
      memcpy(out[i], &none, sizeof(none));
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
