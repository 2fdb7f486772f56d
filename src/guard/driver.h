// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::guard {

// The real functions behind the guard's, by name; null where the driver has
// none (older than the function). Filled by BindDriver().
struct DriverTable {
#define GPUMUX_HOOK(name, params) cuda::CUresult(*name) params;
#define GPUMUX_USE(name, params) cuda::CUresult(*name) params;
#include "guard/table_scope.h"
#undef GPUMUX_HOOK
#undef GPUMUX_USE
};

struct NvmlTable {
  using nvmlDevice_t = nvml::nvmlDevice_t;
  using nvmlMemory_t = nvml::nvmlMemory_t;
  using nvmlMemory_v2_t = nvml::nvmlMemory_v2_t;
  using nvmlProcessInfo_v1_t = nvml::nvmlProcessInfo_v1_t;
  using nvmlProcessInfo_v2_t = nvml::nvmlProcessInfo_v2_t;
  using nvmlProcessInfo_t = nvml::nvmlProcessInfo_t;
  using nvmlProcessDetailList_t = nvml::nvmlProcessDetailList_t;
  using nvmlProcessUtilizationSample_t = nvml::nvmlProcessUtilizationSample_t;
  using nvmlProcessesUtilizationInfo_t = nvml::nvmlProcessesUtilizationInfo_t;
  using nvmlEncoderSessionInfo_t = nvml::nvmlEncoderSessionInfo_t;
  using nvmlFBCSessionInfo_t = nvml::nvmlFBCSessionInfo_t;
  using nvmlAccountingStats_t = nvml::nvmlAccountingStats_t;
#define GPUMUX_NVML_HOOK(name, params) nvml::nvmlReturn_t(*name) params;
#include "guard/nvml_hooks.inc"
#undef GPUMUX_NVML_HOOK
  nvml::nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t device, char* uuid, unsigned length);
};

extern constinit DriverTable g_driver;
extern constinit NvmlTable g_nvml;
extern constinit bool g_driver_bound;

// Finds libcuda.so.1 among the loaded objects and fills the table, once. False
// while no driver is loaded.
bool BindDriver();
bool BindNvml();

// The table, bound if the driver is there. A program linked with -lcuda reaches
// a wrapper without any look-up before, so each wrapper comes through here.
inline DriverTable& Real() {
  if (!__atomic_load_n(&g_driver_bound, __ATOMIC_ACQUIRE)) BindDriver();
  return g_driver;
}

// Routing (routing.cc): the guard's function for an address that the driver
// gave out, or the address itself.
void* RouteDriverAddress(void* address);
// What a look-up of `name` in `handle` shall give. `handled` false: not ours,
// call the real function (whose address is returned) with the caller's identity.
struct LookUp {
  void* result;
  size_t handled;
};

void* RealDlsym();
void* RealDlvsym();

}  // namespace gpumux::guard
