// SPDX-License-Identifier: Apache-2.0
//
// A library that is linked with the driver, for programs that load it in a scope
// of its own.
#include <dlfcn.h>

#include <cstddef>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

extern "C" {

CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice*, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);

const char* NameOfBoth() { return "library's"; }
const char* WhoseName() { return NameOfBoth(); }

int AllocateInLibrary(size_t bytes) {
  CUdevice device;
  CUcontext context;
  CUdeviceptr p;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context)) {
    return -1;
  }
  return cuMemAlloc_v2(&p, bytes);
}

// As a runtime that is linked statically: the driver by dlopen() and dlsym().
int LookUpInLibrary(size_t bytes) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto alloc = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(driver, "cuMemAlloc_v2"));
  CUdeviceptr p;
  return alloc ? static_cast<int>(alloc(&p, bytes)) : -2;
}

}  // extern "C"
