// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills: every entry point and its per-thread-stream twin.
#include "softgpu/driver/api.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
CopyShape Bytes(size_t bytes) { return {bytes, 1, bytes, bytes}; }

// CUDA_MEMCPY2D, version 2.
struct Copy2D {
  size_t from_x, from_y;
  int from_type;
  const void* from_host;
  CUdeviceptr from_device;
  CUarray from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  int to_type;
  void* to_host;
  CUdeviceptr to_device;
  CUarray to_array;
  size_t to_pitch;
  size_t width, height;
};
static_assert(sizeof(Copy2D) == 128);
enum { kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

CUresult CopyRows(const Copy2D* copy, CUstream stream, bool wait) {
  GPUMUX_REQUIRE_INIT();
  if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (copy->from_type == kArray || copy->to_type == kArray) return CUDA_ERROR_NOT_SUPPORTED;
  if (copy->from_type < kHost || copy->from_type > kUnified || copy->to_type < kHost ||
      copy->to_type > kUnified) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t from_pitch = copy->from_pitch != 0 ? copy->from_pitch : copy->width;
  const size_t to_pitch = copy->to_pitch != 0 ? copy->to_pitch : copy->width;
  const uint64_t from = (copy->from_type == kHost ? Address(copy->from_host) : copy->from_device) +
                        copy->from_y * from_pitch + copy->from_x;
  const uint64_t to = (copy->to_type == kHost ? Address(copy->to_host) : copy->to_device) +
                      copy->to_y * to_pitch + copy->to_x;
  return Copy(to, copy->to_type == kDevice ? Side::kDevice : Side::kAny, from,
              copy->from_type == kDevice ? Side::kDevice : Side::kAny,
              {copy->width, copy->height, to_pitch, from_pitch}, stream, wait);
}

}  // namespace

// --- copies

GPUMUX_CU cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return Copy(to, Side::kDevice, Address(from), Side::kAny, Bytes(bytes), nullptr, true);
}
GPUMUX_CU cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return Copy(to, Side::kDevice, Address(from), Side::kAny, Bytes(bytes), kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kDevice, Address(from), Side::kAny, Bytes(bytes), stream, false);
}
GPUMUX_CU cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kDevice, Address(from), Side::kAny, Bytes(bytes), PerThread(stream), false);
}
GPUMUX_CU cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return Copy(Address(to), Side::kAny, from, Side::kDevice, Bytes(bytes), nullptr, true);
}
GPUMUX_CU cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return Copy(Address(to), Side::kAny, from, Side::kDevice, Bytes(bytes), kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(Address(to), Side::kAny, from, Side::kDevice, Bytes(bytes), stream, false);
}
GPUMUX_CU cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(Address(to), Side::kAny, from, Side::kDevice, Bytes(bytes), PerThread(stream), false);
}
GPUMUX_CU cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), nullptr, false);
}
GPUMUX_CU cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), kPerThreadStream, false);
}
GPUMUX_CU cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), stream, false);
}
GPUMUX_CU cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), PerThread(stream), false);
}
GPUMUX_CU cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(to, Side::kAny, from, Side::kAny, Bytes(bytes), nullptr, true);
}
GPUMUX_CU cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return Copy(to, Side::kAny, from, Side::kAny, Bytes(bytes), kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kAny, from, Side::kAny, Bytes(bytes), stream, false);
}
GPUMUX_CU cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return Copy(to, Side::kAny, from, Side::kAny, Bytes(bytes), PerThread(stream), false);
}
GPUMUX_CU cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), nullptr, true);
}
GPUMUX_CU cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                            CUstream stream) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), stream, false);
}
GPUMUX_CU cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                                 CUstream stream) {
  return Copy(to, Side::kDevice, from, Side::kDevice, Bytes(bytes), PerThread(stream), false);
}
GPUMUX_CU cuMemcpy2D_v2(const Copy2D* copy) { return CopyRows(copy, nullptr, true); }
GPUMUX_CU cuMemcpy2D_v2_ptds(const Copy2D* copy) { return CopyRows(copy, kPerThreadStream, true); }
GPUMUX_CU cuMemcpy2DUnaligned_v2(const Copy2D* copy) { return CopyRows(copy, nullptr, true); }
GPUMUX_CU cuMemcpy2DUnaligned_v2_ptds(const Copy2D* copy) { return CopyRows(copy, kPerThreadStream, true); }
GPUMUX_CU cuMemcpy2DAsync_v2(const Copy2D* copy, CUstream stream) { return CopyRows(copy, stream, false); }
GPUMUX_CU cuMemcpy2DAsync_v2_ptsz(const Copy2D* copy, CUstream stream) {
  return CopyRows(copy, PerThread(stream), false);
}

// --- fills

GPUMUX_CU cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  return Fill(to, 0, 1, value, count, 1, nullptr);
}
GPUMUX_CU cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
  return Fill(to, 0, 1, value, count, 1, kPerThreadStream);
}
GPUMUX_CU cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return Fill(to, 0, 1, value, count, 1, stream);
}
GPUMUX_CU cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return Fill(to, 0, 1, value, count, 1, PerThread(stream));
}
GPUMUX_CU cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return Fill(to, pitch, 1, value, width, height, nullptr);
}
GPUMUX_CU cuMemsetD2D8_v2_ptds(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                               size_t height) {
  return Fill(to, pitch, 1, value, width, height, kPerThreadStream);
}
GPUMUX_CU cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                            CUstream stream) {
  return Fill(to, pitch, 1, value, width, height, stream);
}
GPUMUX_CU cuMemsetD2D8Async_ptsz(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                 size_t height, CUstream stream) {
  return Fill(to, pitch, 1, value, width, height, PerThread(stream));
}
GPUMUX_CU cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  return Fill(to, 0, 2, value, count, 1, nullptr);
}
GPUMUX_CU cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
  return Fill(to, 0, 2, value, count, 1, kPerThreadStream);
}
GPUMUX_CU cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return Fill(to, 0, 2, value, count, 1, stream);
}
GPUMUX_CU cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return Fill(to, 0, 2, value, count, 1, PerThread(stream));
}
GPUMUX_CU cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return Fill(to, pitch, 2, value, width, height, nullptr);
}
GPUMUX_CU cuMemsetD2D16_v2_ptds(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                size_t height) {
  return Fill(to, pitch, 2, value, width, height, kPerThreadStream);
}
GPUMUX_CU cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                             CUstream stream) {
  return Fill(to, pitch, 2, value, width, height, stream);
}
GPUMUX_CU cuMemsetD2D16Async_ptsz(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                  size_t height, CUstream stream) {
  return Fill(to, pitch, 2, value, width, height, PerThread(stream));
}
GPUMUX_CU cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  return Fill(to, 0, 4, value, count, 1, nullptr);
}
GPUMUX_CU cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned value, size_t count) {
  return Fill(to, 0, 4, value, count, 1, kPerThreadStream);
}
GPUMUX_CU cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return Fill(to, 0, 4, value, count, 1, stream);
}
GPUMUX_CU cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return Fill(to, 0, 4, value, count, 1, PerThread(stream));
}
GPUMUX_CU cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return Fill(to, pitch, 4, value, width, height, nullptr);
}
GPUMUX_CU cuMemsetD2D32_v2_ptds(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return Fill(to, pitch, 4, value, width, height, kPerThreadStream);
}
GPUMUX_CU cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                             CUstream stream) {
  return Fill(to, pitch, 4, value, width, height, stream);
}
GPUMUX_CU cuMemsetD2D32Async_ptsz(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                                  CUstream stream) {
  return Fill(to, pitch, 4, value, width, height, PerThread(stream));
}

// --- hints about managed memory

namespace {
CUresult Prefetch(CUdeviceptr pointer, size_t bytes, bool to_device, CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  const auto range = Memory::Get().Find(pointer);
  if (!range || range->kind != Range::Kind::kManaged || bytes == 0 ||
      bytes > range->base + range->size - pointer) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!to_device) return CUDA_SUCCESS;  // the pages stay counted until they are freed
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kEffect;
  work->effect = [=] {
    Memory::Get().Touch(pointer, bytes);
    return true;
  };
  Engine::Get().EnqueueOrRun(stream, std::move(work));
  return CUDA_SUCCESS;
}
}  // namespace

GPUMUX_CU cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
  return Prefetch(pointer, bytes, device >= 0, stream);
}
GPUMUX_CU cuMemPrefetchAsync_ptsz(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
  return Prefetch(pointer, bytes, device >= 0, PerThread(stream));
}
GPUMUX_CU cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned,
                                CUstream stream) {
  return Prefetch(pointer, bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE, stream);
}
GPUMUX_CU cuMemPrefetchAsync_v2_ptsz(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned,
                                     CUstream stream) {
  return Prefetch(pointer, bytes, location.type == CU_MEM_LOCATION_TYPE_DEVICE, PerThread(stream));
}

namespace {
CUresult Advise(CUdeviceptr pointer, size_t bytes) {
  GPUMUX_REQUIRE_CONTEXT(context);
  const auto range = Memory::Get().Find(pointer);
  const bool ok = range && range->kind == Range::Kind::kManaged && bytes > 0 &&
                  bytes <= range->base + range->size - pointer;
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}  // namespace
GPUMUX_CU cuMemAdvise(CUdeviceptr pointer, size_t bytes, int, CUdevice) { return Advise(pointer, bytes); }
GPUMUX_CU cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int, CUmemLocation) {
  return Advise(pointer, bytes);
}

}  // namespace gpumux::softgpu
