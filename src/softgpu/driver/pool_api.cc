// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory and its pools.
#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult Alloc(CUdeviceptr* out, size_t bytes, Pool* pool, CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (pool == nullptr) pool = Memory::Get().CurrentPool(stream->context->device);
  if (Captures::Any()) {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Node* node = nullptr;
    const auto captured = Captures::Take(
        stream,
        [&] {
          AllocOperation operation;
          operation.params.pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
          operation.params.pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, pool->device->ordinal};
          operation.params.bytes = bytes;
          return operation;
        },
        &node);
    if (captured) {
      if (*captured == CUDA_SUCCESS) *out = std::get<AllocOperation>(node->operation).params.address;
      return *captured;
    }
  }
  return Memory::Get().AllocFromPool(pool, stream->context, stream->id, bytes, out);
}

CUresult AllocFrom(CUdeviceptr* out, size_t bytes, CUmemoryPool handle, CUstream stream) {
  GPUMUX_REQUIRE_INIT();
  Pool* pool = Memory::Get().FindPool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Alloc(out, bytes, pool, stream);
}

CUresult Free(CUdeviceptr pointer, CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (auto captured = Captures::Take(stream, [&] { return FreeOperation{pointer, nullptr}; }))
    return *captured;
  if (pointer == 0) return CUDA_SUCCESS;
  if (const auto piece = GraphMemory::Get().FindLive(pointer)) {
    if (!GraphMemory::Get().BeginFree(*piece)) return CUDA_ERROR_INVALID_VALUE;
    auto work = std::make_shared<Work>();
    work->kind = Work::Kind::kEffect;
    work->effect = [piece] {
      GraphMemory::Get().EndLaunch(*piece->arena);
      return true;
    };
    Engine::Get().EnqueueOrRun(stream, work);
    return CUDA_SUCCESS;
  }
  if (Memory::Get().FreeAtSynchronize(pointer) == CUDA_SUCCESS) return CUDA_SUCCESS;
  uint64_t ticket = 0;
  Pool* pool = nullptr;
  if (CUresult error = Memory::Get().BeginFree(pointer, stream->id, &ticket, &pool); error != CUDA_SUCCESS) {
    return error;
  }
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  work->effect = [pool, ticket] {
    Memory::Get().FinishFree(pool, ticket);
    return true;
  };
  Engine::Get().EnqueueOrRun(stream, work);
  return CUDA_SUCCESS;
}

}  // namespace

GPUMUX_CU cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return Alloc(out, bytes, nullptr, stream);
}
GPUMUX_CU cuMemAllocAsync_ptsz(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return Alloc(out, bytes, nullptr, PerThread(stream));
}
GPUMUX_CU cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return AllocFrom(out, bytes, pool, stream);
}
GPUMUX_CU cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return AllocFrom(out, bytes, pool, PerThread(stream));
}
GPUMUX_CU cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return Free(pointer, stream); }
GPUMUX_CU cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return Free(pointer, PerThread(stream));
}

namespace {
CUmemoryPool PoolHandle(Pool* pool) { return reinterpret_cast<CUmemoryPool>(pool); }
}  // namespace

GPUMUX_CU cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice ordinal) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = PoolHandle(Memory::Get().DefaultPool(device));
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceGetMemPool(CUmemoryPool* out, CUdevice ordinal) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = PoolHandle(Memory::Get().CurrentPool(device));
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Pool* pool = Memory::Get().FindPool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().SetCurrentPool(device, pool);
}

namespace {
CUresult DeviceOfLocation(const CUmemLocation* location, CUmemAllocationType type, Device** device) {
  GPUMUX_REQUIRE_INIT();
  if (location == nullptr || type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  *device = Driver::Get().FindDevice(location->id);
  return *device != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}  // namespace

GPUMUX_CU cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  Device* device = nullptr;
  if (CUresult error = DeviceOfLocation(location, type, &device); error != CUDA_SUCCESS) return error;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = PoolHandle(Memory::Get().DefaultPool(device));
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type) {
  Device* device = nullptr;
  if (CUresult error = DeviceOfLocation(location, type, &device); error != CUDA_SUCCESS) return error;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = PoolHandle(Memory::Get().CurrentPool(device));
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool handle) {
  Device* device = nullptr;
  if (CUresult error = DeviceOfLocation(location, type, &device); error != CUDA_SUCCESS) return error;
  Pool* pool = Memory::Get().FindPool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().SetCurrentPool(device, pool);
}

GPUMUX_CU cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  GPUMUX_REQUIRE_INIT();
  GPUMUX_REQUIRE_NO_CAPTURE();
  if (out == nullptr || props == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Pool* pool = nullptr;
  if (CUresult error = Memory::Get().CreatePool(*props, &pool); error != CUDA_SUCCESS) return error;
  *out = PoolHandle(pool);
  return CUDA_SUCCESS;
}

#define REQUIRE_POOL(name, handle)             \
  GPUMUX_REQUIRE_INIT();                       \
  Pool* name = Memory::Get().FindPool(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE

GPUMUX_CU cuMemPoolDestroy(CUmemoryPool handle) {
  REQUIRE_POOL(pool, handle);
  return Memory::Get().DestroyPool(pool);
}
GPUMUX_CU cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  REQUIRE_POOL(pool, handle);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().TrimPool(pool, keep);
}
GPUMUX_CU cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  REQUIRE_POOL(pool, handle);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().GetPoolAttribute(pool, attribute, value);
}
GPUMUX_CU cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  REQUIRE_POOL(pool, handle);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().SetPoolAttribute(pool, attribute, value);
}
GPUMUX_CU cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, size_t count) {
  REQUIRE_POOL(pool, handle);
  if (map == nullptr && count > 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    Device* device = Driver::Get().FindDevice(map[i].location.id);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    // Its own device has access and keeps it; there are no peers.
    if (device == pool->device && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    if (device != pool->device && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
      return CUDA_ERROR_INVALID_DEVICE;
  }
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  REQUIRE_POOL(pool, handle);
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *flags = location->id == pool->device->ordinal ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
