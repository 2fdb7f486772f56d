// SPDX-License-Identifier: Apache-2.0
//
// Linked with -lnvidia-ml: reaches NVML without any look-up of its own.
#include <cstdio>

#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::nvml;

extern "C" {
nvmlReturn_t nvmlInit_v2();
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t*);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned*, nvmlProcessInfo_t*);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t*);
}

int main() {
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory = {};
  nvmlProcessInfo_t list[16];
  unsigned count = 16;
  nvmlInit_v2();
  nvmlDeviceGetHandleByIndex_v2(0, &device);
  const int m = nvmlDeviceGetMemoryInfo(device, &memory);
  const int r = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
  std::printf("memory %d %llu\nlist %d %u\n", m, memory.total, r, count);
  return 0;
}
