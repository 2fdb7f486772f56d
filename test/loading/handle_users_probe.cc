// SPDX-License-Identifier: Apache-2.0
//
// What keeps physical memory beyond its handle, on the fake driver, or with
// "descriptors" on the software GPU: prints after each step what the tenant has
// taken, in MiB.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

namespace {

constexpr size_t kMiB = 1 << 20, kBytes = 64 * kMiB;

template <typename... P>
void Must(const char* name, P... args) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* f = driver ? reinterpret_cast<CUresult (*)(P...)>(dlsym(driver, name)) : nullptr;
  const int r = f ? f(args...) : -1;
  if (r == 0) return;
  std::printf("%s: %d\n", name, r);
  std::exit(8);
}

void Say(const char* step) {
  static size_t before = 0;
  size_t free = 0, total = 0;
  Must("cuMemGetInfo_v2", &free, &total);
  if (before == 0) before = free;
  std::printf("%s %zu\n", step, (before - free) / kMiB);
}

CUresult TryCreate(CUmemGenericAllocationHandle* handle) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto create =
      reinterpret_cast<CUresult (*)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                                    unsigned long long)>(dlsym(driver, "cuMemCreate"));
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  return create(handle, kBytes, &prop, 0);
}

CUmemGenericAllocationHandle Create() {
  CUmemGenericAllocationHandle handle = 0;
  if (const int r = TryCreate(&handle); r != 0) {
    std::printf("cuMemCreate: %d\n", r);
    std::exit(8);
  }
  return handle;
}

int Export(CUmemGenericAllocationHandle handle) {
  int descriptor = -1;
  Must("cuMemExportToShareableHandle", static_cast<void*>(&descriptor), handle,
       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0ull);
  return descriptor;
}

void Descriptors() {
  CUcontext context = nullptr;
  Must("cuDevicePrimaryCtxRetain", &context, 0);
  Must("cuCtxSetCurrent", context);
  Say("nothing");
  // As peers of a job do: passed on, released by the sender, closed.
  CUmemGenericAllocationHandle a = Create();
  int descriptor = Export(a);
  Must("cuMemRelease", a);
  Say("released, exported");
  close(descriptor);
  Must("cuMemRelease", Create());
  Say("closed");
  // Closed first.
  a = Create();
  close(Export(a));
  Say("exported, closed");
  Must("cuMemRelease", a);
  Say("released");
  // The same number again and again.
  for (int i = 0; i < 100; ++i) {
    a = Create();
    descriptor = Export(a);
    Must("cuMemRelease", a);
    close(descriptor);
  }
  Must("cuMemRelease", Create());
  Say("a hundred");
  // And never closed: the promise holds.
  int kept = 0;
  for (; kept < 1000 && TryCreate(&a) == CUDA_SUCCESS; ++kept) {
    Export(a);
    Must("cuMemRelease", a);
  }
  std::printf("kept %d\n", kept);
}

CUarrayMapInfo Part(CUarray array, unsigned x, CUmemGenericAllocationHandle handle) {
  CUarrayMapInfo info = {};
  info.resource = array;
  info.subresource[1] = x;  // of the words: level, layer, x, y
  info.memOperationType = handle ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
  info.memHandle = handle;
  return info;
}

void Arrays(const char* map) {
  const CUDA_ARRAY3D_DESCRIPTOR sparse = {4096, 4096, 0, 1, 1, 0x40};
  CUarray array = nullptr;
  Must("cuArray3DCreate_v2", &array, &sparse);
  const CUmemGenericAllocationHandle a = Create(), b = Create();
  CUarrayMapInfo parts[2] = {Part(array, 0, a), Part(array, 256, b)};
  Must(map, parts, 2u, static_cast<CUstream>(nullptr));
  Must("cuMemRelease", a);
  Must("cuMemRelease", b);
  Say("two released, mapped");
  CUarrayMapInfo unmap = Part(array, 256, 0);
  Must(map, &unmap, 1u, static_cast<CUstream>(nullptr));
  Say("one unmapped");
  // Another handle in the place of the first.
  const CUmemGenericAllocationHandle c = Create();
  CUarrayMapInfo again = Part(array, 0, c);
  Must(map, &again, 1u, static_cast<CUstream>(nullptr));
  Must("cuMemRelease", c);
  Say("one replaced");
  Must("cuArrayDestroy", array);
  Say("array destroyed");
}

void Multicast() {
  CUmemGenericAllocationHandle object = 0;
  const char prop[64] = {};
  Must("cuMulticastCreate", &object, static_cast<const void*>(prop));
  const CUmemGenericAllocationHandle a = Create(), b = Create();
  constexpr CUdeviceptr kAddress = 0x700000000000;
  Must("cuMulticastBindMem", object, size_t{0}, a, size_t{0}, kBytes, 0ull);
  Must("cuMemMap", kAddress, kBytes, size_t{0}, b, 0ull);
  Must("cuMulticastBindAddr", object, kBytes, kAddress, kBytes, 0ull);
  Must("cuMemUnmap", kAddress, kBytes);
  Must("cuMemRelease", a);
  Must("cuMemRelease", b);
  Say("two released, bound");
  Must("cuMulticastUnbind", object, 0, size_t{0}, kBytes);
  Say("one unbound");
  Must("cuMemMap", kAddress, kBytes, size_t{0}, object, 0ull);
  Must("cuMemRelease", object);
  Say("object released, mapped");
  Must("cuMemUnmap", kAddress, kBytes);
  Say("object unmapped");
}

void Contexts() {
  CUcontext context = nullptr;
  for (const char* name : {"cuGLCtxCreate", "cuGLCtxCreate_v2"}) {
    Must(name, &context, 0u, 0);
    Say(name);
    Must("cuCtxDestroy_v2", context);
    Say("destroyed");
  }
  for (const char* name : {"cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"}) {
    Must(name, &context, 0u, 0, 0u, static_cast<void*>(nullptr));
    Say(name);
    Must("cuCtxDestroy_v2", context);
    Say("destroyed");
  }
}

}  // namespace

int main(int argc, char**) {
  Must("cuInit", 0u);
  if (argc > 1) {
    Descriptors();
    return 0;
  }
  Say("nothing");
  Arrays("cuMemMapArrayAsync");
  Arrays("cuMemMapArrayAsync_ptsz");
  Multicast();
  Contexts();
  return 0;
}
