// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::test {

// Entry points of the software GPU's libraries, looked up by name as any
// program would; aborts the (child) process when one is missing.
inline void* Symbol(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW);
  void* symbol = handle != nullptr ? dlsym(handle, name) : nullptr;
  if (symbol == nullptr) {
    fprintf(stderr, "%s: %s\n", name, dlerror());
    abort();
  }
  return symbol;
}

// CU(cuMemAlloc_v2, CUdeviceptr*, size_t)(&pointer, 100)
#define CU(name, ...)                                           \
  (reinterpret_cast<::gpumux::cuda::CUresult (*)(__VA_ARGS__)>( \
      ::gpumux::test::Symbol(SOFTGPU_LIBCUDA, #name)))
#define NVML(name, ...)                                             \
  (reinterpret_cast<::gpumux::nvml::nvmlReturn_t (*)(__VA_ARGS__)>( \
      ::gpumux::test::Symbol(SOFTGPU_LIBNVML, #name)))

// Short forms of what nearly every test needs. Current context: the primary one
// of device 0.
inline cuda::CUresult InitWithContext() {
  if (auto result = CU(cuInit, unsigned)(0); result != cuda::CUDA_SUCCESS) return result;
  cuda::CUcontext context;
  if (auto result = CU(cuDevicePrimaryCtxRetain, cuda::CUcontext*, int)(&context, 0);
      result != cuda::CUDA_SUCCESS) {
    return result;
  }
  return CU(cuCtxSetCurrent, cuda::CUcontext)(context);
}
inline cuda::CUresult Alloc(cuda::CUdeviceptr* out, size_t bytes) {
  return CU(cuMemAlloc_v2, cuda::CUdeviceptr*, size_t)(out, bytes);
}
inline cuda::CUresult Free(cuda::CUdeviceptr pointer) { return CU(cuMemFree_v2, cuda::CUdeviceptr)(pointer); }
inline cuda::CUresult Synchronize() { return CU(cuCtxSynchronize, )(); }
inline cuda::CUresult ToDevice(cuda::CUdeviceptr to, const void* from, size_t bytes) {
  return CU(cuMemcpyHtoD_v2, cuda::CUdeviceptr, const void*, size_t)(to, from, bytes);
}
inline cuda::CUresult FromDevice(void* to, cuda::CUdeviceptr from, size_t bytes) {
  return CU(cuMemcpyDtoH_v2, void*, cuda::CUdeviceptr, size_t)(to, from, bytes);
}

// What NVML says, of GPU 0.
struct Reading {
  unsigned long long used = 0;
  unsigned long long free = 0;
};
inline nvml::nvmlDevice_t Gpu0() {
  NVML(nvmlInit_v2, )();
  nvml::nvmlDevice_t device = nullptr;
  NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvml::nvmlDevice_t*)(0, &device);
  return device;
}
inline Reading ReadMemory(nvml::nvmlDevice_t device) {
  nvml::nvmlMemory_v2_t memory = {};
  memory.version = nvml::kMemoryV2;
  if (NVML(nvmlDeviceGetMemoryInfo_v2, nvml::nvmlDevice_t, nvml::nvmlMemory_v2_t*)(device, &memory) != 0)
    return {};
  return {memory.used, memory.free};
}
// The process's own figure; -1 if it is not listed.
inline long long OwnBytes(nvml::nvmlDevice_t device, int pid) {
  nvml::nvmlProcessInfo_v2_t infos[256];
  unsigned count = 256;
  if (NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvml::nvmlDevice_t, unsigned*,
           nvml::nvmlProcessInfo_v2_t*)(device, &count, infos) != 0) {
    return -1;
  }
  for (unsigned i = 0; i < count; ++i) {
    if (infos[i].pid == static_cast<unsigned>(pid)) return static_cast<long long>(infos[i].usedGpuMemory);
  }
  return -1;
}

inline constexpr char kPtx[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n"
    ".visible .entry spin(.param .u64 ns) { ret; }\n"
    ".visible .entry fill(.param .u64 p, .param .u32 v, .param .u64 n) { ret; }\n"
    ".visible .entry saxpy(.param .f32 a, .param .u64 x, .param .u64 y, .param .u64 n) { ret; }\n"
    ".visible .entry checksum(.param .u64 p, .param .u64 n, .param .u64 out) { ret; }\n"
    ".visible .entry fault() { ret; }\n"
    ".visible .entry other() { ret; }\n";

inline cuda::CUfunction GetFunction(const char* name) {
  static cuda::CUmodule module = [] {
    cuda::CUmodule loaded = nullptr;
    CU(cuModuleLoadData, cuda::CUmodule*, const void*)(&loaded, kPtx);
    return loaded;
  }();
  cuda::CUfunction function = nullptr;
  CU(cuModuleGetFunction, cuda::CUfunction*, cuda::CUmodule, const char*)(&function, module, name);
  return function;
}
inline cuda::CUresult Launch(cuda::CUfunction function, unsigned blocks, unsigned threads,
                             cuda::CUstream stream, void** params) {
  return CU(cuLaunchKernel, cuda::CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
            unsigned, cuda::CUstream, void**,
            void**)(function, blocks, 1, 1, threads, 1, 1, 0, stream, params, nullptr);
}
inline cuda::CUresult Spin(uint64_t ns, cuda::CUstream stream = nullptr, unsigned blocks = 33) {
  static cuda::CUfunction function = GetFunction("spin");
  void* params[] = {&ns};
  return Launch(function, blocks, 1024, stream, params);
}

}  // namespace gpumux::test
