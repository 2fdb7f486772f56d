// SPDX-License-Identifier: Apache-2.0
//
// The driver as a tenant's program finds it, and the device's own figures, which
// no guard changes.
#pragma once

#include <dlfcn.h>

#include <cstdint>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::probe {

constexpr uint64_t kMiB = 1 << 20;

// The loaded libcuda.so.1; ends the program with 9 where there is none.
void* Driver();

template <typename F>
F Find(const char* name) {
  return reinterpret_cast<F>(dlsym(Driver(), name));
}

// The calls' parameter types stand without their namespace in the list.
namespace calls {
using namespace gpumux::cuda;
struct Api {
#define PROBE_CALL(name, params) CUresult(*name) params = nullptr;
#include "driver_calls.inc"
#undef PROBE_CALL
};
}  // namespace calls

extern calls::Api api;
extern cuda::CUdevice device;
extern cuda::CUcontext primary;

// Ends the program with 8 after saying what failed.
void Check(cuda::CUresult r, const char* what);
// Initialises the driver, and no context.
void Initialise();
// The same, and makes the first device's primary context current.
// Ends the program with 3 where the promise is too small for a context.
void StartUp();
// Free memory as the program is told it.
uint64_t Free();
uint64_t NowNs();
cuda::CUmemAllocationProp DeviceProp();
cuda::CUmemoryPool NewPool();

// NVML's figures of the first device, asked past the guard.
class Truth {
 public:
  Truth();
  // Of this process: 0 while it is not listed.
  uint64_t Own() const;
  // Of the device, whoever uses it.
  uint64_t DeviceUsed() const;

 private:
  nvml::nvmlDevice_t device_ = nullptr;
  int (*processes_)(nvml::nvmlDevice_t, unsigned*, nvml::nvmlProcessInfo_v2_t*) = nullptr;
  int (*memory_)(nvml::nvmlDevice_t, nvml::nvmlMemory_t*) = nullptr;
};

}  // namespace gpumux::probe
