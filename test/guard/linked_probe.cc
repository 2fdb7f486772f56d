// SPDX-License-Identifier: Apache-2.0
//
// A program that is linked with the driver: the guard is met by symbol order
// alone. Prints the codes of a small and a large allocation.
#include <cstdio>
#include <cstdlib>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDeviceGet(CUdevice*, int);
CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
}

int main(int, char** argv) {
  CUdevice device;
  CUcontext context;
  CUdeviceptr p;
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context)) {
    return 8;
  }
  std::printf("small %d\n", cuMemAlloc_v2(&p, 1 << 20));
  std::printf("large %d\n", cuMemAlloc_v2(&p, std::strtoull(argv[1], nullptr, 10)));
  return 0;
}
