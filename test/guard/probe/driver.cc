// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "past_guard.h"

namespace gpumux::probe {

using namespace gpumux::cuda;
namespace nv = gpumux::nvml;

calls::Api api;
CUdevice device = 0;
CUcontext primary = nullptr;

void* Driver() {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (!handle) {
    std::printf("no driver: %s\n", dlerror());
    std::exit(9);
  }
  return handle;
}

void Check(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  std::printf("%s failed: %d\n", what, r);
  std::fflush(stdout);
  std::exit(8);
}

void Initialise() {
#define PROBE_CALL(name, params) api.name = Find<decltype(api.name)>(#name);
#include "driver_calls.inc"
#undef PROBE_CALL
  Check(api.cuInit(0), "cuInit");
  Check(api.cuDeviceGet(&device, 0), "cuDeviceGet");
}

void StartUp() {
  Initialise();
  const CUresult r = api.cuDevicePrimaryCtxRetain(&primary, device);
  if (r != CUDA_SUCCESS) {
    std::printf("retain %d\n", r);
    std::exit(r == CUDA_ERROR_OUT_OF_MEMORY ? 3 : 8);
  }
  Check(api.cuCtxSetCurrent(primary), "cuCtxSetCurrent");
}

uint64_t Free() {
  size_t free = 0, total = 0;
  Check(api.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
  return free;
}

uint64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

CUmemAllocationProp DeviceProp() {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return prop;
}

CUmemoryPool NewPool() {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  Check(api.cuMemPoolCreate(&pool, &props), "cuMemPoolCreate");
  return pool;
}

Truth::Truth() {
  void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  auto init = reinterpret_cast<int (*)()>(PastGuard(lib, "nvmlInit_v2"));
  auto by_index =
      reinterpret_cast<int (*)(unsigned, nv::nvmlDevice_t*)>(PastGuard(lib, "nvmlDeviceGetHandleByIndex_v2"));
  processes_ =
      reinterpret_cast<decltype(processes_)>(PastGuard(lib, "nvmlDeviceGetComputeRunningProcesses_v3"));
  memory_ = reinterpret_cast<decltype(memory_)>(PastGuard(lib, "nvmlDeviceGetMemoryInfo"));
  if (!init || init() != 0 || !by_index || by_index(0, &device_) != 0 || !processes_ || !memory_) {
    std::printf("no NVML\n");
    std::exit(9);
  }
}

uint64_t Truth::Own() const {
  nv::nvmlProcessInfo_v2_t list[256];
  unsigned count = 256;
  if (processes_(device_, &count, list) != 0) return 0;
  for (unsigned i = 0; i < count; i++) {
    if (list[i].pid == static_cast<unsigned>(getpid())) return list[i].usedGpuMemory;
  }
  return 0;
}

uint64_t Truth::DeviceUsed() const {
  nv::nvmlMemory_t memory = {};
  return memory_(device_, &memory) == 0 ? memory.used : 0;
}

}  // namespace gpumux::probe
