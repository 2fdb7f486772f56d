// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstdio>

#include "commands.h"
#include "driver.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::probe {

using namespace gpumux::cuda;
namespace nv = gpumux::nvml;

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

}  // namespace gpumux::probe
