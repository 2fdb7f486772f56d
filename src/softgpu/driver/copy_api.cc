// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills: every entry point and its per-thread-stream twin.
#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult CopyRows(const Copy2D* rows, CUstream stream, bool wait) {
  GPUMUX_REQUIRE_INIT();
  if (rows == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto side = [](const CopySide2D& flat) {
    CopySide out = {};
    out.x_bytes = flat.x_bytes;
    out.y = flat.y;
    out.type = flat.type;
    out.host = flat.host;
    out.device = flat.device;
    out.array = flat.array;
    out.pitch = flat.pitch;
    return out;
  };
  Copy3D copy = {};
  copy.from = side(rows->from);
  copy.to = side(rows->to);
  copy.width_bytes = rows->width_bytes;
  copy.height = rows->height;
  copy.depth = 1;
  // A pitch that is given has room for a row, even if there is only one.
  for (const CopySide& one : {copy.from, copy.to}) {
    if (one.type != kArrayMemory && one.pitch != 0 && one.pitch < copy.width_bytes)
      return CUDA_ERROR_INVALID_VALUE;
  }
  return Copy(copy, stream, wait);
}

CUresult CopyVolume(const Copy3D* copy, CUstream stream, bool wait) {
  GPUMUX_REQUIRE_INIT();
  return copy != nullptr ? Copy(*copy, stream, wait) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

// --- copies

GPUMUX_CU cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return CopyBytes(DeviceSide(to), HostSide(from), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return CopyBytes(DeviceSide(to), HostSide(from), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return CopyBytes(DeviceSide(to), HostSide(from), bytes, stream, false);
}
GPUMUX_CU cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return CopyBytes(DeviceSide(to), HostSide(from), bytes, PerThread(stream), false);
}
GPUMUX_CU cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return CopyBytes(HostSide(to), DeviceSide(from), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  return CopyBytes(HostSide(to), DeviceSide(from), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyBytes(HostSide(to), DeviceSide(from), bytes, stream, false);
}
GPUMUX_CU cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyBytes(HostSide(to), DeviceSide(from), bytes, PerThread(stream), false);
}
GPUMUX_CU cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, nullptr, false);
}
GPUMUX_CU cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, kPerThreadStream, false);
}
GPUMUX_CU cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, stream, false);
}
GPUMUX_CU cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, PerThread(stream), false);
}
GPUMUX_CU cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyBytes(UnifiedSide(to), UnifiedSide(from), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return CopyBytes(UnifiedSide(to), UnifiedSide(from), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyBytes(UnifiedSide(to), UnifiedSide(from), bytes, stream, false);
}
GPUMUX_CU cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return CopyBytes(UnifiedSide(to), UnifiedSide(from), bytes, PerThread(stream), false);
}
GPUMUX_CU cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                            CUstream stream) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, stream, false);
}
GPUMUX_CU cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                                 CUstream stream) {
  return CopyBytes(DeviceSide(to), DeviceSide(from), bytes, PerThread(stream), false);
}

// Arrays.
GPUMUX_CU cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  return CopyBytes(ArraySide(to, offset), DeviceSide(from), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
  return CopyBytes(ArraySide(to, offset), DeviceSide(from), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  return CopyBytes(DeviceSide(to), ArraySide(from, offset), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
  return CopyBytes(DeviceSide(to), ArraySide(from, offset), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
  return CopyBytes(ArraySide(to, offset), HostSide(from), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyHtoA_v2_ptds(CUarray to, size_t offset, const void* from, size_t bytes) {
  return CopyBytes(ArraySide(to, offset), HostSide(from), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream) {
  return CopyBytes(ArraySide(to, offset), HostSide(from), bytes, stream, false);
}
GPUMUX_CU cuMemcpyHtoAAsync_v2_ptsz(CUarray to, size_t offset, const void* from, size_t bytes,
                                    CUstream stream) {
  return CopyBytes(ArraySide(to, offset), HostSide(from), bytes, PerThread(stream), false);
}
GPUMUX_CU cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
  return CopyBytes(HostSide(to), ArraySide(from, offset), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyAtoH_v2_ptds(void* to, CUarray from, size_t offset, size_t bytes) {
  return CopyBytes(HostSide(to), ArraySide(from, offset), bytes, kPerThreadStream, true);
}
GPUMUX_CU cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
  return CopyBytes(HostSide(to), ArraySide(from, offset), bytes, stream, false);
}
GPUMUX_CU cuMemcpyAtoHAsync_v2_ptsz(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
  return CopyBytes(HostSide(to), ArraySide(from, offset), bytes, PerThread(stream), false);
}
GPUMUX_CU cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  return CopyBytes(ArraySide(to, to_offset), ArraySide(from, from_offset), bytes, nullptr, true);
}
GPUMUX_CU cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
  return CopyBytes(ArraySide(to, to_offset), ArraySide(from, from_offset), bytes, kPerThreadStream, true);
}

// Rows and volumes.
GPUMUX_CU cuMemcpy2D_v2(const Copy2D* copy) { return CopyRows(copy, nullptr, true); }
GPUMUX_CU cuMemcpy2D_v2_ptds(const Copy2D* copy) { return CopyRows(copy, kPerThreadStream, true); }
GPUMUX_CU cuMemcpy2DUnaligned_v2(const Copy2D* copy) { return CopyRows(copy, nullptr, true); }
GPUMUX_CU cuMemcpy2DUnaligned_v2_ptds(const Copy2D* copy) { return CopyRows(copy, kPerThreadStream, true); }
GPUMUX_CU cuMemcpy2DAsync_v2(const Copy2D* copy, CUstream stream) { return CopyRows(copy, stream, false); }
GPUMUX_CU cuMemcpy2DAsync_v2_ptsz(const Copy2D* copy, CUstream stream) {
  return CopyRows(copy, PerThread(stream), false);
}
GPUMUX_CU cuMemcpy3D_v2(const Copy3D* copy) { return CopyVolume(copy, nullptr, true); }
GPUMUX_CU cuMemcpy3D_v2_ptds(const Copy3D* copy) { return CopyVolume(copy, kPerThreadStream, true); }
GPUMUX_CU cuMemcpy3DPeer(const Copy3D* copy) { return CopyVolume(copy, nullptr, true); }
GPUMUX_CU cuMemcpy3DPeer_ptds(const Copy3D* copy) { return CopyVolume(copy, kPerThreadStream, true); }
GPUMUX_CU cuMemcpy3DAsync_v2(const Copy3D* copy, CUstream stream) { return CopyVolume(copy, stream, false); }
GPUMUX_CU cuMemcpy3DAsync_v2_ptsz(const Copy3D* copy, CUstream stream) {
  return CopyVolume(copy, PerThread(stream), false);
}
GPUMUX_CU cuMemcpy3DPeerAsync(const Copy3D* copy, CUstream stream) { return CopyVolume(copy, stream, false); }
GPUMUX_CU cuMemcpy3DPeerAsync_ptsz(const Copy3D* copy, CUstream stream) {
  return CopyVolume(copy, PerThread(stream), false);
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
  if (auto captured = Captures::Forbid(stream)) return *captured;
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
