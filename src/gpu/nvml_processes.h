// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/nvml.h"
#include "gpumux/abi/nvml/nvml.h"

namespace gpumux::gpu {

// What an NVML result means, about `what`.
using NvmlError = std::function<tl::unexpected<Error>(nvml::nvmlReturn_t result, const std::string& what)>;

// The process lists of a GPU or of a MIG device, in whichever layout the loaded library fills.
class NvmlProcessLists {
 public:
  NvmlProcessLists(void* library, NvmlError error) : library_(library), error_(std::move(error)) {}

  // Compute and graphics processes, each pid once. `name` is for messages.
  Result<std::vector<ProcessUse>> Of(nvml::nvmlDevice_t device, const std::string& name);

 private:
  Status List(const std::string& stem, nvml::nvmlDevice_t device, const std::string& name,
              std::vector<ProcessUse>& all);
  Status ListBy(void* symbol, size_t declared, nvml::nvmlDevice_t device, const std::string& name,
                std::vector<ProcessUse>& all);

  void* library_;
  NvmlError error_;
  std::map<void*, size_t> entry_bytes_;  // of each list function, once it has shown it
};

}  // namespace gpumux::gpu
