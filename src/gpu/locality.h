// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/cpu_list.h"
#include "base/result.h"

namespace gpumux::gpu {

// What of the machine is near a GPU.
struct Locality {
  CpuList cpus;
  CpuList memory_nodes;  // empty: not known
  std::string source;    // "NVML" or "sysfs"
};

// What the kernel says of the PCI device (`pci_bus_id` as NVML writes it).
// kUnavailable: it does not say.
Result<Locality> SysfsLocality(const std::string& pci_bus_id, const std::string& sysfs_root = "/sys");

class Nvml;
struct Device;

// NVML's word, else the kernel's.
Result<Locality> FindLocality(Nvml& nvml, const Device& device, const std::string& sysfs_root = "/sys");

}  // namespace gpumux::gpu
