// SPDX-License-Identifier: Apache-2.0
//
// A driver of which the guard's tests need what the software GPU does not have:
// sparse arrays with memory, multicast objects, contexts of graphics interfaces.
// It gives out handles and says yes to everything, on the GPU that
// CUDA_VISIBLE_DEVICES names by its UUID.
#include <cstdlib>
#include <cstring>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

namespace {

unsigned long long next_handle = 0x1000;

template <typename T>
CUresult Make(T* out) {
  next_handle += 0x10;
  memcpy(out, &next_handle, sizeof *out);
  return CUDA_SUCCESS;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) CUresult

FAKE cuInit(unsigned) { return CUDA_SUCCESS; }
FAKE cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
FAKE cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) {
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr || strncmp(text, "GPU-", 4) != 0) return CUDA_ERROR_INVALID_DEVICE;
  int digits = 0;
  for (text += 4; *text != 0 && digits < 32; ++text) {
    if (*text == '-') continue;
    const int v = *text <= '9' ? *text - '0' : (*text | 0x20) - 'a' + 10;
    auto& byte = uuid->bytes[digits / 2];
    byte = static_cast<char>(digits % 2 ? byte | v : v << 4);
    ++digits;
  }
  return CUDA_SUCCESS;
}
FAKE cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
FAKE cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = size_t{140} << 30;
  return CUDA_SUCCESS;
}
FAKE cuMemCreate(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                 unsigned long long) {
  return Make(handle);
}
FAKE cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
FAKE cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return CUDA_SUCCESS;
}
FAKE cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
FAKE cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR*) { return Make(array); }
FAKE cuArrayDestroy(CUarray) { return CUDA_SUCCESS; }
FAKE cuMemMapArrayAsync(CUarrayMapInfo*, unsigned, CUstream) { return CUDA_SUCCESS; }
FAKE cuMemMapArrayAsync_ptsz(CUarrayMapInfo*, unsigned, CUstream) { return CUDA_SUCCESS; }
FAKE cuMulticastCreate(CUmemGenericAllocationHandle* handle, const void*) { return Make(handle); }
FAKE cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t,
                        unsigned long long) {
  return CUDA_SUCCESS;
}
FAKE cuMulticastBindAddr(CUmemGenericAllocationHandle, size_t, CUdeviceptr, size_t, unsigned long long) {
  return CUDA_SUCCESS;
}
FAKE cuMulticastUnbind(CUmemGenericAllocationHandle, CUdevice, size_t, size_t) { return CUDA_SUCCESS; }
FAKE cuGLCtxCreate(CUcontext* context, unsigned, CUdevice) { return Make(context); }
FAKE cuGLCtxCreate_v2(CUcontext* context, unsigned, CUdevice) { return Make(context); }
FAKE cuVDPAUCtxCreate(CUcontext* context, unsigned, CUdevice, unsigned, void*) { return Make(context); }
FAKE cuVDPAUCtxCreate_v2(CUcontext* context, unsigned, CUdevice, unsigned, void*) { return Make(context); }
FAKE cuCtxDestroy_v2(CUcontext) { return CUDA_SUCCESS; }
