// SPDX-License-Identifier: Apache-2.0
//
// A tenant's program on several GPUs: what it sees of each, what it gets on
// each, and memory of a device that is not the current context's.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::cuda;
using namespace gpumux::nvml;

namespace {

constexpr size_t kMiB = 1 << 20;
size_t g_bytes = 64 * kMiB;  // what each step asks for

template <typename F>
F In(const char* file, const char* name) {
  void* library = dlopen(file, RTLD_NOW);
  auto function = reinterpret_cast<F>(library ? dlsym(library, name) : nullptr);
  if (!function) {
    std::printf("no %s\n", name);
    std::exit(9);
  }
  return function;
}
#define CU(name, ...) In<CUresult (*)(__VA_ARGS__)>("libcuda.so.1", #name)
#define NVML(name, ...) In<nvmlReturn_t (*)(__VA_ARGS__)>("libnvidia-ml.so.1", #name)

std::string TextOf(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; i++) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

std::string UuidOf(CUdevice device) {
  CUuuid uuid = {};
  CU(cuDeviceGetUuid_v2, CUuuid*, CUdevice)(&uuid, device);
  return TextOf(uuid);
}

std::string UuidOf(nvmlDevice_t device) {
  char text[96] = "?";
  NVML(nvmlDeviceGetUUID, nvmlDevice_t, char*, unsigned)(device, text, sizeof text);
  return text;
}

nvmlDevice_t ByUuid(const std::string& uuid) {
  nvmlDevice_t device = nullptr;
  NVML(nvmlDeviceGetHandleByUUID, const char*, nvmlDevice_t*)(uuid.c_str(), &device);
  return device;
}

// What the device has of this process, and what the tenant is told as used.
struct Figures {
  uint64_t own = 0, used = 0;
};
Figures Read(nvmlDevice_t device) {
  Figures f;
  nvmlProcessInfo_t list[64];
  unsigned count = 64;
  if (NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, unsigned*, nvmlProcessInfo_t*)(
          device, &count, list) == NVML_SUCCESS) {
    for (unsigned i = 0; i < count; i++) f.own += list[i].usedGpuMemory;
  }
  nvmlMemory_t memory = {};
  NVML(nvmlDeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t*)(device, &memory);
  f.used = memory.used;
  return f;
}

// "gpu ORDINAL UUID total T retain CODE free F granted G", then the same GPU
// by NVML: "index I v1 TOTAL FREE USED v2 TOTAL RESERVED FREE USED own SUM
// bypci UUID". Memory is taken in pieces of 256 MiB until it is refused.
void SeeOne(CUdevice device) {
  size_t total = 0, free = 0, same = 0;
  CUcontext context = nullptr;
  const std::string uuid = UuidOf(device);
  CU(cuDeviceTotalMem_v2, size_t*, CUdevice)(&total, device);
  const CUresult retain = CU(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice)(&context, device);
  uint64_t granted = 0;
  CUresult last = retain;
  if (retain == CUDA_SUCCESS) {
    CU(cuCtxSetCurrent, CUcontext)(context);
    CU(cuMemGetInfo_v2, size_t*, size_t*)(&free, &same);
    CUdeviceptr p = 0;
    while (granted < 64ull << 30 &&
           (last = CU(cuMemAlloc_v2, CUdeviceptr*, size_t)(&p, 256 * kMiB)) == CUDA_SUCCESS) {
      granted += 256 * kMiB;
    }
    size_t after = 0;
    CU(cuMemGetInfo_v2, size_t*, size_t*)(&after, &same);
    free = after;
  }
  nvmlDevice_t by_uuid = ByUuid(uuid), by_pci = nullptr;
  unsigned index = 99;
  char bus[32] = {};
  nvmlMemory_t v1 = {};
  nvmlMemory_v2_t v2 = {};
  v2.version = kMemoryV2;
  NVML(nvmlDeviceGetIndex, nvmlDevice_t, unsigned*)(by_uuid, &index);
  CU(cuDeviceGetPCIBusId, char*, int, CUdevice)(bus, sizeof bus, device);
  NVML(nvmlDeviceGetHandleByPciBusId_v2, const char*, nvmlDevice_t*)(bus, &by_pci);
  NVML(nvmlDeviceGetMemoryInfo, nvmlDevice_t, nvmlMemory_t*)(by_pci, &v1);
  NVML(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, nvmlMemory_v2_t*)(by_uuid, &v2);
  std::printf(
      "gpu %d %s total %zu retain %d last %d free %zu granted %llu index %u v1 %llu %llu %llu v2 %llu %llu "
      "%llu "
      "%llu own %llu bypci %s\n",
      device, uuid.c_str(), total, retain, last, free, static_cast<unsigned long long>(granted), index,
      v1.total, v1.free, v1.used, v2.total, v2.reserved, v2.free, v2.used,
      static_cast<unsigned long long>(Read(by_uuid).own), UuidOf(by_pci).c_str());
}

int See() {
  const CUresult r = CU(cuInit, unsigned)(0);
  int count = 0;
  if (r == CUDA_SUCCESS) CU(cuDeviceGetCount, int*)(&count);
  std::printf("init %d count %d\n", r, count);
  NVML(nvmlInit_v2)();
  for (CUdevice device = 0; device < count; device++) SeeOne(device);
  return 0;
}

// --- memory of another device than the current context's ---------------------------

struct Two {
  CUcontext context[2] = {};
  nvmlDevice_t nvml[2] = {};
};

CUmemAllocationProp On(CUdevice device) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

CUmemoryPool PoolOn(CUdevice device) {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  CUmemoryPool pool = nullptr;
  if (CU(cuMemPoolCreate, CUmemoryPool*, const CUmemPoolProps*)(&pool, &props) != CUDA_SUCCESS)
    std::printf("no pool\n");
  return pool;
}

CUmemoryPool OwnPoolOf(CUdevice device) {
  CUmemoryPool pool = nullptr;
  CU(cuDeviceGetDefaultMemPool, CUmemoryPool*, CUdevice)(&pool, device);
  return pool;
}

CUresult FromPool(CUmemoryPool pool, std::function<void()>* undo) {
  CUdeviceptr p = 0;
  const CUresult r =
      CU(cuMemAllocFromPoolAsync, CUdeviceptr*, size_t, CUmemoryPool, CUstream)(&p, g_bytes, pool, nullptr);
  *undo = [p, pool] {
    if (p) CU(cuMemFreeAsync, CUdeviceptr, CUstream)(p, nullptr);
    CU(cuStreamSynchronize, CUstream)(nullptr);
    CU(cuMemPoolTrimTo, CUmemoryPool, size_t)(pool, 0);
  };
  return r;
}

CUresult OnStreamOf(CUcontext context, CUcontext back, std::function<void()>* undo) {
  CUstream stream = nullptr;
  CU(cuCtxSetCurrent, CUcontext)(context);
  CU(cuStreamCreate, CUstream*, unsigned)(&stream, 0);
  CU(cuCtxSetCurrent, CUcontext)(back);
  CUdeviceptr p = 0;
  const CUresult r = CU(cuMemAllocAsync, CUdeviceptr*, size_t, CUstream)(&p, g_bytes, stream);
  *undo = [p, stream] {
    if (p) CU(cuMemFreeAsync, CUdeviceptr, CUstream)(p, stream);
    CU(cuStreamSynchronize, CUstream)(stream);
    CU(cuMemPoolTrimTo, CUmemoryPool, size_t)(OwnPoolOf(0), 0);
    CU(cuMemPoolTrimTo, CUmemoryPool, size_t)(OwnPoolOf(1), 0);
  };
  return r;
}

CUresult GraphOn(CUdevice device, std::function<void()>* undo) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CU(cuGraphCreate, CUgraph*, unsigned)(&graph, 0);
  CUDA_MEM_ALLOC_NODE_PARAMS params = {};
  params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  params.bytesize = g_bytes;
  CUresult r = CU(cuGraphAddMemAllocNode, CUgraphNode*, CUgraph, const CUgraphNode*, size_t,
                  CUDA_MEM_ALLOC_NODE_PARAMS*)(&node, graph, nullptr, 0, &params);
  if (r == CUDA_SUCCESS)
    r = CU(cuGraphInstantiateWithFlags, CUgraphExec*, CUgraph, unsigned long long)(&exec, graph, 0);
  if (r == CUDA_SUCCESS) r = CU(cuGraphLaunch, CUgraphExec, CUstream)(exec, nullptr);
  CU(cuStreamSynchronize, CUstream)(nullptr);
  *undo = [=] {
    if (r == CUDA_SUCCESS) CU(cuMemFree_v2, CUdeviceptr)(params.dptr);
    if (exec) CU(cuGraphExecDestroy, CUgraphExec)(exec);
    CU(cuGraphDestroy, CUgraph)(graph);
    CU(cuDeviceGraphMemTrim, CUdevice)(device);
  };
  return r;
}

// Prints "NAME CODE own D0 D1 used D0 D1 back D0 D1": by how much the device's
// figure of this process and the told use of each GPU grew, and what is left of
// the told use after the end of it.
void Step(const char* name, const Two& two, const std::function<CUresult(std::function<void()>*)>& take) {
  const Figures before[2] = {Read(two.nvml[0]), Read(two.nvml[1])};
  std::function<void()> undo = [] {};
  const CUresult r = take(&undo);
  const Figures with[2] = {Read(two.nvml[0]), Read(two.nvml[1])};
  undo();
  const Figures after[2] = {Read(two.nvml[0]), Read(two.nvml[1])};
  auto grown = [](uint64_t a, uint64_t b) {
    return static_cast<long long>(b - a) / static_cast<long long>(kMiB);
  };
  std::printf("%s %d own %lld %lld used %lld %lld back %lld %lld\n", name, r,
              grown(before[0].own, with[0].own), grown(before[1].own, with[1].own),
              grown(before[0].used, with[0].used), grown(before[1].used, with[1].used),
              grown(before[0].used, after[0].used), grown(before[1].used, after[1].used));
}

// With a context of device 0 current; `both`: there is one on device 1 too.
// `fill_mib` are taken on device 1 first, and then each step asks for 512 MiB.
int Across(bool both, size_t fill_mib) {
  CU(cuInit, unsigned)(0);
  NVML(nvmlInit_v2)();
  Two two;
  for (CUdevice device = 0; device < 2; device++) {
    two.nvml[device] = ByUuid(UuidOf(device));
    if (device == 0 || both) CU(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice)(&two.context[device], device);
  }
  if (fill_mib) {
    CUdeviceptr p = 0;
    CU(cuCtxSetCurrent, CUcontext)(two.context[1]);
    std::printf("filled %d\n", CU(cuMemAlloc_v2, CUdeviceptr*, size_t)(&p, fill_mib * kMiB));
    g_bytes = 512 * kMiB;
  }
  CU(cuCtxSetCurrent, CUcontext)(two.context[0]);
  Step("create", two, [&](auto* undo) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = On(1);
    const CUresult r = CU(cuMemCreate, CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                          unsigned long long)(&handle, g_bytes, &prop, 0);
    *undo = [=] {
      if (handle) CU(cuMemRelease, CUmemGenericAllocationHandle)(handle);
    };
    return r;
  });
  Step("pool", two, [&](auto* undo) { return FromPool(PoolOn(1), undo); });
  Step("own-pool", two, [&](auto* undo) { return FromPool(OwnPoolOf(1), undo); });
  Step("graph", two, [&](auto* undo) { return GraphOn(1, undo); });
  if (!both) return 0;
  Step("stream", two, [&](auto* undo) { return OnStreamOf(two.context[1], two.context[0], undo); });
  Step("pushed", two, [&](auto* undo) {
    CUdeviceptr p = 0;
    CU(cuCtxPushCurrent_v2, CUcontext)(two.context[1]);
    const CUresult r = CU(cuMemAlloc_v2, CUdeviceptr*, size_t)(&p, g_bytes);
    CUcontext popped = nullptr;
    CU(cuCtxPopCurrent_v2, CUcontext*)(&popped);
    *undo = [=] { CU(cuMemFree_v2, CUdeviceptr)(p); };  // with the other context current
    return r;
  });
  Step("plain", two, [&](auto* undo) {
    CUdeviceptr p = 0;
    const CUresult r = CU(cuMemAlloc_v2, CUdeviceptr*, size_t)(&p, g_bytes);
    *undo = [=] { CU(cuMemFree_v2, CUdeviceptr)(p); };
    return r;
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (what == "see") return See();
  if (what == "across") return Across(true, argc > 2 ? std::stoul(argv[2]) : 0);
  if (what == "across-one") return Across(false, 0);
  std::fprintf(stderr, "unknown: %s\n", what.c_str());
  return 2;
}
