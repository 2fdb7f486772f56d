// SPDX-License-Identifier: Apache-2.0
//
// What a tenant's program sees, for the tests of the guard: each sub-command
// does one thing with the driver and prints one line a step. Runs under
// `gpumux run` or bare.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::cuda;
namespace nv = gpumux::nvml;

namespace {

constexpr uint64_t kMiB = 1 << 20;

void* Driver() {
  static void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (!handle) {
    std::printf("no driver: %s\n", dlerror());
    std::exit(9);
  }
  return handle;
}

template <typename F>
F Find(const char* name) {
  return reinterpret_cast<F>(dlsym(Driver(), name));
}

#define DRIVER_CALL(name, params) CUresult(*name) params = nullptr;
struct Api {
  DRIVER_CALL(cuInit, (unsigned))
  DRIVER_CALL(cuDeviceGet, (CUdevice*, int))
  DRIVER_CALL(cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))
  DRIVER_CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))
  DRIVER_CALL(cuCtxSetCurrent, (CUcontext))
  DRIVER_CALL(cuCtxSynchronize, ())
  DRIVER_CALL(cuCtxCreate_v2, (CUcontext*, unsigned, CUdevice))
  DRIVER_CALL(cuCtxDestroy_v2, (CUcontext))
  DRIVER_CALL(cuMemGetInfo_v2, (size_t*, size_t*))
  DRIVER_CALL(cuDeviceTotalMem_v2, (size_t*, CUdevice))
  DRIVER_CALL(cuMemAlloc_v2, (CUdeviceptr*, size_t))
  DRIVER_CALL(cuMemFree_v2, (CUdeviceptr))
  DRIVER_CALL(cuMemAllocPitch_v2, (CUdeviceptr*, size_t*, size_t, size_t, unsigned))
  DRIVER_CALL(cuMemAllocManaged, (CUdeviceptr*, size_t, unsigned))
  DRIVER_CALL(cuMemAllocAsync, (CUdeviceptr*, size_t, CUstream))
  DRIVER_CALL(cuMemAllocFromPoolAsync, (CUdeviceptr*, size_t, CUmemoryPool, CUstream))
  DRIVER_CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))
  DRIVER_CALL(cuStreamSynchronize, (CUstream))
  DRIVER_CALL(cuMemPoolCreate, (CUmemoryPool*, const CUmemPoolProps*))
  DRIVER_CALL(cuMemPoolDestroy, (CUmemoryPool))
  DRIVER_CALL(cuMemPoolTrimTo, (CUmemoryPool, size_t))
  DRIVER_CALL(cuMemPoolSetAttribute, (CUmemoryPool, CUmemPool_attribute, void*))
  DRIVER_CALL(cuMemCreate,
              (CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long))
  DRIVER_CALL(cuMemRelease, (CUmemGenericAllocationHandle))
  DRIVER_CALL(cuMemAddressReserve, (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long))
  DRIVER_CALL(cuMemAddressFree, (CUdeviceptr, size_t))
  DRIVER_CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))
  DRIVER_CALL(cuMemUnmap, (CUdeviceptr, size_t))
  DRIVER_CALL(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc*, size_t))
  DRIVER_CALL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle*, void*))
  DRIVER_CALL(cuArrayCreate_v2, (CUarray*, const CUDA_ARRAY_DESCRIPTOR*))
  DRIVER_CALL(cuArray3DCreate_v2, (CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*))
  DRIVER_CALL(cuArrayDestroy, (CUarray))
  DRIVER_CALL(cuMipmappedArrayCreate, (CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned))
  DRIVER_CALL(cuMipmappedArrayDestroy, (CUmipmappedArray))
  DRIVER_CALL(cuModuleLoadData, (CUmodule*, const void*))
  DRIVER_CALL(cuModuleUnload, (CUmodule))
  DRIVER_CALL(cuCtxSetLimit, (CUlimit, size_t))
  DRIVER_CALL(cuStreamCreate, (CUstream*, unsigned))
  DRIVER_CALL(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))
  DRIVER_CALL(cuStreamEndCapture, (CUstream, CUgraph*))
  DRIVER_CALL(cuGraphCreate, (CUgraph*, unsigned))
  DRIVER_CALL(cuGraphDestroy, (CUgraph))
  DRIVER_CALL(cuGraphAddMemAllocNode,
              (CUgraphNode*, CUgraph, const CUgraphNode*, size_t, CUDA_MEM_ALLOC_NODE_PARAMS*))
  DRIVER_CALL(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))
  DRIVER_CALL(cuGraphLaunch, (CUgraphExec, CUstream))
  DRIVER_CALL(cuGraphUpload, (CUgraphExec, CUstream))
  DRIVER_CALL(cuGraphExecDestroy, (CUgraphExec))
  DRIVER_CALL(cuDeviceGraphMemTrim, (CUdevice))
  DRIVER_CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))
  DRIVER_CALL(cuMemcpyDtoH_v2, (void*, CUdeviceptr, size_t))
  DRIVER_CALL(cuMemcpyHtoD_v2, (CUdeviceptr, const void*, size_t))
};
#undef DRIVER_CALL
Api api;
CUdevice device = 0;
CUcontext primary = nullptr;

void LoadApi() {
#define LOAD(name) api.name = Find<decltype(api.name)>(#name)
  LOAD(cuInit), LOAD(cuDeviceGet), LOAD(cuDevicePrimaryCtxRetain), LOAD(cuDevicePrimaryCtxReset_v2);
  LOAD(cuCtxSetCurrent), LOAD(cuCtxSynchronize), LOAD(cuCtxCreate_v2), LOAD(cuCtxDestroy_v2);
  LOAD(cuMemGetInfo_v2), LOAD(cuDeviceTotalMem_v2), LOAD(cuMemAlloc_v2), LOAD(cuMemFree_v2),
      LOAD(cuMemAllocPitch_v2);
  LOAD(cuMemAllocManaged), LOAD(cuMemAllocAsync), LOAD(cuMemAllocFromPoolAsync), LOAD(cuMemFreeAsync);
  LOAD(cuStreamSynchronize), LOAD(cuMemPoolCreate), LOAD(cuMemPoolDestroy), LOAD(cuMemPoolTrimTo);
  LOAD(cuMemPoolSetAttribute), LOAD(cuMemCreate), LOAD(cuMemRelease), LOAD(cuMemAddressReserve),
      LOAD(cuMemAddressFree);
  LOAD(cuMemMap), LOAD(cuMemUnmap), LOAD(cuMemSetAccess), LOAD(cuMemRetainAllocationHandle),
      LOAD(cuMemsetD8_v2);
  LOAD(cuMemcpyDtoH_v2), LOAD(cuMemcpyHtoD_v2), LOAD(cuArrayCreate_v2), LOAD(cuArray3DCreate_v2),
      LOAD(cuArrayDestroy);
  LOAD(cuMipmappedArrayCreate), LOAD(cuMipmappedArrayDestroy), LOAD(cuModuleLoadData), LOAD(cuModuleUnload);
  LOAD(cuCtxSetLimit), LOAD(cuStreamCreate), LOAD(cuStreamBeginCapture_v2), LOAD(cuStreamEndCapture),
      LOAD(cuGraphCreate);
  LOAD(cuGraphDestroy), LOAD(cuGraphAddMemAllocNode), LOAD(cuGraphInstantiateWithFlags), LOAD(cuGraphLaunch);
  LOAD(cuGraphUpload), LOAD(cuGraphExecDestroy), LOAD(cuDeviceGraphMemTrim);
#undef LOAD
}

void Check(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  std::printf("%s failed: %d\n", what, r);
  std::fflush(stdout);
  std::exit(8);
}

void StartUp() {
  LoadApi();
  Check(api.cuInit(0), "cuInit");
  Check(api.cuDeviceGet(&device, 0), "cuDeviceGet");
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

// The device's own figure for this process, by NVML, which no guard changes.
class Truth {
 public:
  Truth() {
    void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    auto init = reinterpret_cast<int (*)()>(dlsym(lib, "nvmlInit_v2"));
    auto by_index =
        reinterpret_cast<int (*)(unsigned, nv::nvmlDevice_t*)>(dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"));
    processes_ =
        reinterpret_cast<decltype(processes_)>(dlsym(lib, "nvmlDeviceGetComputeRunningProcesses_v3"));
    if (!init || init() != 0 || !by_index || by_index(0, &device_) != 0 || !processes_) {
      std::printf("no NVML\n");
      std::exit(9);
    }
  }
  uint64_t Own() const {
    nv::nvmlProcessInfo_v2_t list[256];
    unsigned count = 256;
    if (processes_(device_, &count, list) != 0) return 0;
    for (unsigned i = 0; i < count; i++) {
      if (list[i].pid == static_cast<unsigned>(getpid())) return list[i].usedGpuMemory;
    }
    return 0;
  }

 private:
  nv::nvmlDevice_t device_ = nullptr;
  int (*processes_)(nv::nvmlDevice_t, unsigned*, nv::nvmlProcessInfo_v2_t*) = nullptr;
};

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

// --- look-ups -----------------------------------------------------------------

using AllocFn = CUresult (*)(CUdeviceptr*, size_t);
using ProcFn1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using ProcFn2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

AllocFn FindAlloc(const std::string& way) {
  if (way == "handle") return Find<AllocFn>("cuMemAlloc_v2");
  if (way == "default") {
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return reinterpret_cast<AllocFn>(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  }
  if (way == "next") {
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return reinterpret_cast<AllocFn>(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
  }
  if (way == "self") return reinterpret_cast<AllocFn>(dlsym(dlopen(nullptr, RTLD_NOW), "cuMemAlloc_v2"));
  if (way == "dlsym-of-dlsym") {
    auto found = reinterpret_cast<void* (*)(void*, const char*)>(dlsym(RTLD_DEFAULT, "dlsym"));
    return reinterpret_cast<AllocFn>(found(Driver(), "cuMemAlloc_v2"));
  }
  if (way == "dlvsym-of-dlsym") {
    auto found =
        reinterpret_cast<void* (*)(void*, const char*)>(dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.2.5"));
    return found ? reinterpret_cast<AllocFn>(found(Driver(), "cuMemAlloc_v2")) : nullptr;
  }
  void* p = nullptr;
  if (way == "proc-address") {
    Find<ProcFn1>("cuGetProcAddress")("cuMemAlloc", &p, 12000, 0);
  } else if (way == "proc-address-v2") {
    CUdriverProcAddressQueryResult status;
    Find<ProcFn2>("cuGetProcAddress_v2")("cuMemAlloc", &p, 3020, 0, &status);
  } else if (way == "proc-address-by-itself") {
    // As a runtime library does: the look-up function is looked up by itself.
    void* again = nullptr;
    CUdriverProcAddressQueryResult status;
    Find<ProcFn2>("cuGetProcAddress_v2")("cuGetProcAddress", &again, 12000, 0, &status);
    reinterpret_cast<ProcFn2>(again)("cuMemAlloc", &p, 3020, 0, &status);
  }
  return reinterpret_cast<AllocFn>(p);
}

int LookUp(const std::string& way, uint64_t bytes) {
  StartUp();
  AllocFn alloc = FindAlloc(way);
  if (!alloc) {
    std::printf("not found\n");
    return 4;
  }
  CUdeviceptr p = 0;
  std::printf("small %d\n", alloc(&p, kMiB));
  std::printf("large %d\n", alloc(&p, bytes));
  return 0;
}

// The missing function stays missing: a driver without it, or no driver at all.
int Absent() {
  std::printf("default before loading %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != nullptr);
  std::printf("next before loading %d\n", dlsym(RTLD_NEXT, "cuMemAlloc_v2") != nullptr);
  std::printf("other name %d\n", dlsym(Driver(), "cuThereIsNoSuchFunction") != nullptr);
  std::printf("error text %d\n", dlerror() != nullptr);
  // RTLD_NEXT is relative to the caller: this program's own `marker` must not
  // be found after it.
  std::printf("next of C library %d\n", dlsym(RTLD_NEXT, "malloc") != nullptr);
  return 0;
}

// Loads the driver and calls nothing else: what a program without a GPU does.
int Untouched() {
  std::printf("SESSION fds:");
  for (int fd = 3; fd < 1024; fd++) {
    if (fcntl(fd, F_GETFD) >= 0) std::printf(" %d", fd);
  }
  std::printf("\n");
  return 0;
}

// --- families ------------------------------------------------------------------

struct Step {
  std::string name;
  std::function<CUresult()> run;
};

// Prints, for each step, the driver's code, by how much the told free memory
// fell and by how much the device's own figure for the process rose.
int Steps(const std::vector<Step>& steps) {
  Truth truth;
  uint64_t own = truth.Own(), free = Free();
  for (const Step& step : steps) {
    const CUresult r = step.run();
    const uint64_t own_now = truth.Own(), free_now = Free();
    std::printf("%s\t%d\t%" PRId64 "\t%" PRId64 "\n", step.name.c_str(), r,
                static_cast<int64_t>(free - free_now), static_cast<int64_t>(own_now - own));
    own = own_now;
    free = free_now;
  }
  return 0;
}

int Families(uint64_t over) {
  StartUp();
  static CUdeviceptr p[8] = {};
  static size_t pitch = 0;
  static CUmemGenericAllocationHandle h = 0, h2 = 0;
  static CUdeviceptr va = 0;
  static CUmemoryPool pool = nullptr;
  static CUcontext other = nullptr;
  const CUmemAllocationProp prop = DeviceProp();
  Check(api.cuMemAddressReserve(&va, 64 * kMiB, 0, 0, 0), "cuMemAddressReserve");
  std::vector<Step> s;
  auto add = [&](const char* name, std::function<CUresult()> f) { s.push_back({name, std::move(f)}); };
  for (uint64_t bytes : {uint64_t{1}, uint64_t{512}, uint64_t{513}, kMiB, kMiB + 1, 2 * kMiB, 2 * kMiB + 1,
                         3 * kMiB, uint64_t{100'000'000}}) {
    static std::vector<std::string> names;
    const std::string n = std::to_string(bytes);
    s.push_back({"plain " + n, [bytes] { return api.cuMemAlloc_v2(&p[0], bytes); }});
    s.push_back({"plain again " + n, [bytes] { return api.cuMemAlloc_v2(&p[1], bytes); }});
    s.push_back({"free second " + n, [] { return api.cuMemFree_v2(p[1]); }});
    s.push_back({"free first " + n, [] { return api.cuMemFree_v2(p[0]); }});
  }
  add("plain over", [over] { return api.cuMemAlloc_v2(&p[0], over); });
  add("plain zero", [] { return api.cuMemAlloc_v2(&p[0], 0); });
  add("plain absurd", [] { return api.cuMemAlloc_v2(&p[0], ~0ull); });
  add("free nothing", [] { return api.cuMemFree_v2(0); });
  add("free wrong", [] { return api.cuMemFree_v2(0x1234); });

  add("pitch", [] { return api.cuMemAllocPitch_v2(&p[0], &pitch, 100'000, 3000, 16); });
  add("pitch free", [] { return api.cuMemFree_v2(p[0]); });
  add("pitch small", [] { return api.cuMemAllocPitch_v2(&p[0], &pitch, 100, 30, 4); });
  add("pitch small free", [] { return api.cuMemFree_v2(p[0]); });
  add("pitch over", [over] { return api.cuMemAllocPitch_v2(&p[0], &pitch, 1 << 16, over >> 16, 16); });

  add("async 1 byte", [] { return api.cuMemAllocAsync(&p[0], 1, nullptr); });
  add("async 31 MiB", [] { return api.cuMemAllocAsync(&p[1], 31 * kMiB, nullptr); });
  add("async 1 GiB and 1", [] { return api.cuMemAllocAsync(&p[2], 1024 * kMiB + 1, nullptr); });
  add("async free", [] {
    for (int i = 0; i < 3; i++) {
      if (CUresult r = api.cuMemFreeAsync(p[i], nullptr)) return r;
    }
    return CUDA_SUCCESS;
  });
  add("async synchronise", [] { return api.cuStreamSynchronize(nullptr); });
  add("async again", [] { return api.cuMemAllocAsync(&p[0], 5 * kMiB, nullptr); });
  add("async plain free", [] { return api.cuMemFree_v2(p[0]); });
  add("async over", [over] { return api.cuMemAllocAsync(&p[0], over, nullptr); });
  add("async zero", [] { return api.cuMemAllocAsync(&p[0], 0, nullptr); });

  add("pool create", [] {
    pool = NewPool();
    return CUDA_SUCCESS;
  });
  add("pool 5 MiB", [] { return api.cuMemAllocFromPoolAsync(&p[0], 5 * kMiB, pool, nullptr); });
  add("pool over", [over] { return api.cuMemAllocFromPoolAsync(&p[1], over, pool, nullptr); });
  add("pool threshold", [] {
    cuuint64_t keep = ~0ull;
    return api.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
  });
  add("pool free", [] { return api.cuMemFreeAsync(p[0], nullptr); });
  add("pool synchronise", [] { return api.cuCtxSynchronize(); });
  add("pool trim", [] { return api.cuMemPoolTrimTo(pool, 0); });
  add("pool 40 MiB", [] { return api.cuMemAllocFromPoolAsync(&p[0], 40 * kMiB, pool, nullptr); });
  add("pool destroy while used", [] { return api.cuMemPoolDestroy(pool); });
  add("pool last free", [] {
    if (CUresult r = api.cuMemFreeAsync(p[0], nullptr)) return r;
    return api.cuCtxSynchronize();
  });

  add("vmm create", [prop] { return api.cuMemCreate(&h, 6 * kMiB, &prop, 0); });
  add("vmm odd size", [prop] { return api.cuMemCreate(&h2, kMiB, &prop, 0); });
  add("vmm over", [prop, over] { return api.cuMemCreate(&h2, over / (2 * kMiB) * (2 * kMiB), &prop, 0); });
  add("vmm map", [] { return api.cuMemMap(va, 6 * kMiB, 0, h, 0); });
  add("vmm map twice", [] { return api.cuMemMap(va + 8 * kMiB, 6 * kMiB, 0, h, 0); });
  add("vmm release while mapped", [] { return api.cuMemRelease(h); });
  add("vmm unmap", [] { return api.cuMemUnmap(va, 6 * kMiB); });
  add("vmm retain",
      [] { return api.cuMemRetainAllocationHandle(&h2, reinterpret_cast<void*>(va + 8 * kMiB)); });
  add("vmm unmap last", [] { return api.cuMemUnmap(va + 8 * kMiB, 6 * kMiB); });
  add("vmm release last", [] { return api.cuMemRelease(h2); });
  add("vmm release again", [] { return api.cuMemRelease(h2); });

  add("managed", [] { return api.cuMemAllocManaged(&p[0], 100 * kMiB, CU_MEM_ATTACH_GLOBAL); });
  add("managed touch", [] { return api.cuMemsetD8_v2(p[0], 1, 100 * kMiB); });
  add("managed free", [] { return api.cuMemFree_v2(p[0]); });
  add("managed over", [over] { return api.cuMemAllocManaged(&p[0], over, CU_MEM_ATTACH_GLOBAL); });

  add("context", [] {
    if (CUresult r = api.cuCtxCreate_v2(&other, 0, device)) return r;
    return api.cuCtxSetCurrent(primary);
  });
  add("context's plain", [] {
    api.cuCtxSetCurrent(other);
    const CUresult r = api.cuMemAlloc_v2(&p[0], 10 * kMiB);
    api.cuCtxSetCurrent(primary);
    return r;
  });
  add("context destroyed with it", [] {
    const CUresult r = api.cuCtxDestroy_v2(other);
    api.cuCtxSetCurrent(primary);
    return r;
  });
  return Steps(s);
}

// Arrays, modules, limits and memory nodes of graphs. `over` is more than the
// promise, a multiple of 1 GiB.
int MoreFamilies(uint64_t over) {
  StartUp();
  static CUarray array[2] = {};
  static CUmipmappedArray mipmap = nullptr;
  static CUmodule module[2] = {};
  static CUgraph graph = nullptr;
  static CUgraphExec exec = nullptr;
  static CUgraphNode node = nullptr;
  static CUDA_MEM_ALLOC_NODE_PARAMS alloc = {};
  static CUdeviceptr p = 0;
  static CUstream stream = nullptr;
  Check(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  constexpr int kFloat = 0x20;
  std::vector<Step> s;
  auto add = [&](std::string name, std::function<CUresult()> f) {
    s.push_back({std::move(name), std::move(f)});
  };

  const struct {
    const char* name;
    CUDA_ARRAY3D_DESCRIPTOR d;
  } shapes[] = {
      {"1D", {65536, 0, 0, kFloat, 4, 0}},       {"2D", {1000, 1000, 0, kFloat, 4, 0}},
      {"2D odd", {1025, 1025, 0, kFloat, 4, 0}}, {"2D bytes", {4096, 4096, 0, 1, 1, 0}},
      {"3D", {129, 129, 129, kFloat, 4, 0}},     {"layered", {512, 512, 7, kFloat, 1, 1}},
      {"cube map", {512, 512, 6, kFloat, 1, 4}}, {"cube maps", {512, 512, 12, kFloat, 1, 5}},
      {"surface", {2048, 2048, 0, 0x10, 2, 2}},  {"layered rows", {1000, 0, 100, kFloat, 1, 1}},
  };
  for (const auto& shape : shapes) {
    add(std::string("array ") + shape.name, [d = shape.d] { return api.cuArray3DCreate_v2(&array[0], &d); });
    add(std::string("array destroyed ") + shape.name, [] { return api.cuArrayDestroy(array[0]); });
  }
  const CUDA_ARRAY_DESCRIPTOR small = {10, 10, kFloat, 1};
  add("small array", [small] { return api.cuArrayCreate_v2(&array[0], &small); });
  add("small array again", [small] { return api.cuArrayCreate_v2(&array[1], &small); });
  add("small array destroyed", [] { return api.cuArrayDestroy(array[1]); });
  add("small array last", [] { return api.cuArrayDestroy(array[0]); });
  const CUDA_ARRAY_DESCRIPTOR wide = {65536, 32768 / 2, kFloat, static_cast<unsigned>(over >> 32 ? 4 : 2)};
  add("array over", [wide] { return api.cuArrayCreate_v2(&array[0], &wide); });
  const CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, over / (1024 * 1024 * 4), kFloat, 1, 0};
  add("array 3D over", [deep] { return api.cuArray3DCreate_v2(&array[0], &deep); });
  const CUDA_ARRAY3D_DESCRIPTOR levels = {1024, 1024, 0, kFloat, 1, 0};
  for (unsigned n : {1u, 5u, 11u}) {
    add("mipmap " + std::to_string(n),
        [levels, n] { return api.cuMipmappedArrayCreate(&mipmap, &levels, n); });
    add("mipmap destroyed " + std::to_string(n), [] { return api.cuMipmappedArrayDestroy(mipmap); });
  }
  add("mipmap over", [deep] { return api.cuMipmappedArrayCreate(&mipmap, &deep, 1); });

  static std::map<uint64_t, std::string> images;
  auto image = [](uint64_t bytes) {
    auto& text = images[bytes];
    text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .b8 big[" +
           std::to_string(bytes) + "];\n.visible .entry k() { ret; }\n";
    return text.c_str();
  };
  add("module 50 MiB", [=] { return api.cuModuleLoadData(&module[0], image(50 * kMiB)); });
  add("module unloaded", [] { return api.cuModuleUnload(module[0]); });
  add("module 3 MB", [=] { return api.cuModuleLoadData(&module[0], image(3'000'000)); });
  add("module 3 MB unloaded", [] { return api.cuModuleUnload(module[0]); });
  add("module over", [=] { return api.cuModuleLoadData(&module[0], image(over)); });

  add("stack 2 KiB", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048); });
  add("stack 8 KiB", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192); });
  add("stack 1 KiB", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024); });
  add("stack over", [] { return api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 65536); });

  add("graph node", [] {
    alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    alloc.bytesize = 40 * kMiB;
    if (CUresult r = api.cuGraphCreate(&graph, 0)) return r;
    return api.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &alloc);
  });
  add("graph instantiated", [] { return api.cuGraphInstantiateWithFlags(&exec, graph, 0); });
  add("graph launched", [] {
    if (CUresult r = api.cuGraphLaunch(exec, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph freed", [] {
    if (CUresult r = api.cuMemFreeAsync(alloc.dptr, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph launched again", [] {
    if (CUresult r = api.cuGraphLaunch(exec, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph freed again", [] {
    if (CUresult r = api.cuMemFreeAsync(alloc.dptr, stream)) return r;
    return api.cuStreamSynchronize(stream);
  });
  add("graph trimmed", [] { return api.cuDeviceGraphMemTrim(device); });
  add("graph destroyed", [] {
    if (CUresult r = api.cuGraphExecDestroy(exec)) return r;
    return api.cuGraphDestroy(graph);
  });
  add("graph over", [over] {
    alloc.bytesize = over;
    CUresult r = api.cuGraphCreate(&graph, 0);
    if (r == CUDA_SUCCESS) r = api.cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &alloc);
    if (r == CUDA_SUCCESS) r = api.cuGraphInstantiateWithFlags(&exec, graph, 0);
    return r == CUDA_SUCCESS ? api.cuGraphLaunch(exec, stream) : CUDA_ERROR_UNKNOWN;
  });
  add("capture over", [over] {
    CUresult r = api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    if (r == CUDA_SUCCESS) r = api.cuMemAllocAsync(&p, over, stream);
    const CUresult end = api.cuStreamEndCapture(stream, &graph);
    if (r == CUDA_SUCCESS) r = end;
    if (r == CUDA_SUCCESS) r = api.cuGraphInstantiateWithFlags(&exec, graph, 0);
    return r == CUDA_SUCCESS ? api.cuGraphLaunch(exec, stream) : CUDA_ERROR_UNKNOWN;
  });
  return Steps(s);
}

int Told() {
  StartUp();
  size_t free = 0, total = 0, device_total = 0;
  Check(api.cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
  Check(api.cuDeviceTotalMem_v2(&device_total, device), "cuDeviceTotalMem");
  size_t only = 0;
  const CUresult null_free = api.cuMemGetInfo_v2(nullptr, &only);
  std::printf("total %zu\nfree %zu\ndevice_total %zu\nnull_free %d %zu\n", total, free, device_total,
              null_free, only);
  void* lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  reinterpret_cast<int (*)()>(dlsym(lib, "nvmlInit_v2"))();
  nv::nvmlDevice_t d;
  reinterpret_cast<int (*)(unsigned, nv::nvmlDevice_t*)>(dlsym(lib, "nvmlDeviceGetHandleByIndex_v2"))(0, &d);
  nv::nvmlMemory_t m1 = {};
  nv::nvmlMemory_v2_t m2 = {};
  m2.version = nv::kMemoryV2;
  reinterpret_cast<int (*)(nv::nvmlDevice_t, nv::nvmlMemory_t*)>(dlsym(lib, "nvmlDeviceGetMemoryInfo"))(d,
                                                                                                        &m1);
  reinterpret_cast<int (*)(nv::nvmlDevice_t, nv::nvmlMemory_v2_t*)>(dlsym(lib, "nvmlDeviceGetMemoryInfo_v2"))(
      d, &m2);
  std::printf("nvml1 %llu %llu %llu\nnvml2 %llu %llu %llu %llu\n", m1.total, m1.free, m1.used, m2.total,
              m2.reserved, m2.free, m2.used);
  return 0;
}

// --- many processes at the cap ---------------------------------------------------

// Allocates `bytes` at a time by a family of its own until it is refused, and
// prints each call: start, end (CLOCK_MONOTONIC ns), code.
int RaceMember(int index, uint64_t bytes, uint64_t start_ns) {
  StartUp();
  CUmemAllocationProp prop = DeviceProp();
  std::printf("ready\n");
  std::fflush(stdout);
  while (NowNs() < start_ns) {
  }
  for (;;) {
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle h;
    CUresult r;
    const uint64_t begin = NowNs();
    switch (index % 4) {
      case 0:
        r = api.cuMemAlloc_v2(&p, bytes);
        break;
      case 1:
        r = api.cuMemCreate(&h, bytes, &prop, 0);
        break;
      case 2:
        r = api.cuMemAllocAsync(&p, bytes, nullptr);
        break;
      default:
        r = api.cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL);
        break;
    }
    const uint64_t end = NowNs();
    std::printf("call %" PRIu64 " %" PRIu64 " %d\n", begin, end, r);
    if (r != CUDA_SUCCESS) break;
  }
  // Not before all siblings are at the end: the figures are of one moment then.
  char c;
  std::printf("refused\n");
  std::fflush(stdout);
  if (read(0, &c, 1) != 1) return 0;
  std::printf("told %" PRIu64 "\n", Free());
  std::printf("own %" PRIu64 "\n", Truth().Own());
  std::fflush(stdout);
  // Keeps what it has until the parent has read all figures.
  while (read(0, &c, 1) > 0) {
  }
  return 0;
}

// Starts `count` members of the same tenant and prints all they say.
int Race(const char* self, int count, uint64_t bytes) {
  struct Member {
    pid_t pid;
    int in;
    FILE* out;
  };
  std::vector<Member> members;
  const uint64_t start = NowNs() + 1'500'000'000;
  for (int i = 0; i < count; i++) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) return 9;
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      const std::string index = std::to_string(i), size = std::to_string(bytes), at = std::to_string(start);
      execl(self, self, "race-member", index.c_str(), size.c_str(), at.c_str(), nullptr);
      _exit(9);
    }
    close(to[0]);
    close(from[1]);
    members.push_back({pid, to[1], fdopen(from[0], "r")});
  }
  auto read_until = [&](const char* last) {
    for (size_t i = 0; i < members.size(); i++) {
      char line[256];
      while (fgets(line, sizeof line, members[i].out)) {
        std::printf("%zu %s", i, line);
        if (strncmp(line, last, strlen(last)) == 0 || strncmp(line, "retain ", 7) == 0) break;
      }
    }
  };
  read_until("refused");
  for (auto& m : members) {
    if (write(m.in, "x", 1) != 1) return 9;
  }
  read_until("own ");
  std::fflush(stdout);
  // Everything is read while every member still holds its memory; the test may
  // look at the ledger now, until our own input ends.
  std::printf("all done\n");
  std::fflush(stdout);
  if (const char* hold = getenv("PROBE_HOLD_FILE")) {
    while (access(hold, F_OK) != 0) usleep(5000);
  }
  for (auto& m : members) close(m.in);
  for (auto& m : members) waitpid(m.pid, nullptr, 0);
  return 0;
}

// --- killed anywhere ------------------------------------------------------------

// Allocates and frees at random by every family until it is killed by its own
// second thread, `us` microseconds after it began.
int Killed(uint64_t seed, uint64_t us) {
  std::mt19937_64 random(seed);
  std::thread killer([us] {
    const uint64_t end = NowNs() + us * 1000;
    while (NowNs() < end) {
    }
    kill(getpid(), SIGKILL);
  });
  StartUp();
  const CUmemAllocationProp prop = DeviceProp();
  CUmemoryPool pool = NewPool();
  std::vector<CUdeviceptr> plain, streamed;
  std::vector<CUmemGenericAllocationHandle> handles;
  for (;;) {
    const uint64_t bytes = (1 + random() % 64) * kMiB;
    CUdeviceptr p = 0;
    CUmemGenericAllocationHandle h;
    switch (random() % 8) {
      case 0:
        if (api.cuMemAlloc_v2(&p, bytes) == CUDA_SUCCESS) plain.push_back(p);
        break;
      case 1:
        if (api.cuMemAlloc_v2(&p, bytes % 700'000 + 1) == CUDA_SUCCESS) plain.push_back(p);
        break;
      case 2:
        if (api.cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS) plain.push_back(p);
        break;
      case 3:
        if (api.cuMemAllocAsync(&p, bytes, nullptr) == CUDA_SUCCESS) streamed.push_back(p);
        break;
      case 4:
        if (api.cuMemAllocFromPoolAsync(&p, bytes, pool, nullptr) == CUDA_SUCCESS) streamed.push_back(p);
        break;
      case 5:
        if (api.cuMemCreate(&h, 2 * bytes, &prop, 0) == CUDA_SUCCESS) handles.push_back(h);
        break;
      case 6:
        if (!plain.empty()) api.cuMemFree_v2(plain.back()), plain.pop_back();
        if (!handles.empty()) api.cuMemRelease(handles.back()), handles.pop_back();
        break;
      default:
        if (!streamed.empty()) api.cuMemFreeAsync(streamed.back(), nullptr), streamed.pop_back();
        api.cuStreamSynchronize(nullptr);
    }
  }
}

// Takes `bytes`, writes and reads them again and again, and frees and takes
// them in between, until `stop` exists: any refusal or wrong value is an error.
int Survive(uint64_t bytes, const char* stop) {
  StartUp();
  uint64_t rounds = 0;
  std::vector<unsigned char> back(4096);
  std::printf("working\n");
  std::fflush(stdout);
  while (access(stop, F_OK) != 0) {
    CUdeviceptr p = 0;
    if (CUresult r = api.cuMemAlloc_v2(&p, bytes)) {
      std::printf("refused %d in round %" PRIu64 "\n", r, rounds);
      return 5;
    }
    const unsigned char value = static_cast<unsigned char>(1 + rounds % 200);
    Check(api.cuMemsetD8_v2(p, value, 4096), "fill");
    Check(api.cuMemcpyDtoH_v2(back.data(), p, 4096), "copy");
    for (unsigned char b : back) {
      if (b != value) {
        std::printf("wrong value in round %" PRIu64 "\n", rounds);
        return 6;
      }
    }
    Check(api.cuMemFree_v2(p), "free");
    rounds++;
    usleep(1000);
  }
  std::printf("rounds %" PRIu64 "\n", rounds);
  return 0;
}

// Waits for its daemon's death, then takes memory until it is refused.
int Orphan() {
  StartUp();
  std::printf("ready\n");
  const char* hold = getenv("PROBE_HOLD_FILE");
  while (hold && access(hold, F_OK) != 0) usleep(2000);
  uint64_t taken = 0;
  CUdeviceptr p = 0;
  CUresult r;
  while ((r = api.cuMemAlloc_v2(&p, 32 * kMiB)) == CUDA_SUCCESS) taken += 32 * kMiB;
  std::printf("taken %" PRIu64 " then %d\n", taken, r);
  return 0;
}

// --- forks ------------------------------------------------------------------------

// A fork before CUDA is used: both sides are processes of the tenant.
int ForkBefore(uint64_t bytes) {
  int result[2];
  if (pipe(result) != 0) return 9;
  const pid_t pid = fork();
  StartUp();
  CUdeviceptr p = 0;
  const int r = api.cuMemAlloc_v2(&p, bytes);
  if (pid == 0) {
    if (write(result[1], &r, sizeof r) < 0) return 9;
    pause();
  }
  int childs = -1;
  if (read(result[0], &childs, sizeof childs) < 0) return 9;
  std::printf("both %d\n", (r == 0) + (childs == 0));
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return 0;
}

// A fork after: the child ends without CUDA; the parent's ledger stays right.
int ForkAfter() {
  StartUp();
  CUdeviceptr p = 0;
  Check(api.cuMemAlloc_v2(&p, 100 * kMiB), "alloc");
  const uint64_t before = Free();
  const pid_t pid = fork();
  if (pid == 0) {
    CUdeviceptr q = 0;
    _exit(api.cuMemAlloc_v2(&q, kMiB) == CUDA_SUCCESS ? 1 : 0);  // CUDA does not work in this child
  }
  int status = 0;
  waitpid(pid, &status, 0);
  std::printf("child allocated %d\nsame %d\n", WEXITSTATUS(status), Free() == before);
  Check(api.cuMemFree_v2(p), "free");
  std::printf("back %d\n", Free() == before + 100 * kMiB);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> a(argv + 1, argv + argc);
  auto number = [&](size_t i) { return i < a.size() ? std::strtoull(a[i].c_str(), nullptr, 10) : 0; };
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (a.empty()) return 2;
  if (a[0] == "lookup") return LookUp(a.at(1), number(2));
  if (a[0] == "absent") return Absent();
  if (a[0] == "untouched") return Untouched();
  if (a[0] == "families") return Families(number(1));
  if (a[0] == "more-families") return MoreFamilies(number(1));
  if (a[0] == "told") return Told();
  if (a[0] == "race") return Race(argv[0], static_cast<int>(number(1)), number(2));
  if (a[0] == "race-member") return RaceMember(static_cast<int>(number(1)), number(2), number(3));
  if (a[0] == "killed") return Killed(number(1), number(2));
  if (a[0] == "survive") return Survive(number(1), a.at(2).c_str());
  if (a[0] == "orphan") return Orphan();
  if (a[0] == "fork-before") return ForkBefore(number(1));
  if (a[0] == "fork-after") return ForkAfter();
  std::fprintf(stderr, "unknown: %s\n", a[0].c_str());
  return 2;
}
