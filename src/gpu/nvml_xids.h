// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "gpu/nvml.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::gpu {

// Xids of the GPUs of a loaded library, by an event set. A library without such sets, or a GPU that
// cannot be watched, has none. NVML may answer for the set only between its start and its end.
class NvmlXids {
 public:
  // Gives the library's function of a name, or null.
  explicit NvmlXids(const std::function<void*(const char* name)>& find);

  // `handles` are those of `gpus`. The first call after a start of NVML begins to watch.
  std::vector<Xid> Take(const std::vector<Device>& gpus, const std::vector<nvml::nvmlDevice_t>& handles);
  // Before NVML ends.
  void End();

 private:
  bool Begin(const std::vector<nvml::nvmlDevice_t>& handles);

  nvml::nvmlReturn_t (*create_)(nvml::nvmlEventSet_t*) = nullptr;
  nvml::nvmlReturn_t (*free_)(nvml::nvmlEventSet_t) = nullptr;
  nvml::nvmlReturn_t (*register_)(nvml::nvmlDevice_t, unsigned long long types,
                                  nvml::nvmlEventSet_t) = nullptr;
  nvml::nvmlReturn_t (*wait_)(nvml::nvmlEventSet_t, nvml::nvmlEventData_t*, unsigned timeout_ms) = nullptr;
  nvml::nvmlEventSet_t set_ = nullptr;
  bool begun_ = false;
};

}  // namespace gpumux::gpu
