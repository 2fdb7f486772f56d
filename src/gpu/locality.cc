// SPDX-License-Identifier: Apache-2.0
#include "gpu/locality.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "gpu/nvml.h"

namespace gpumux::gpu {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line.substr(0, 65536);
}

// NVML: eight digits of the domain, and capitals; sysfs: four, and none.
std::string SysfsName(std::string bus_id) {
  if (bus_id.size() == 16 && bus_id.starts_with("0000")) bus_id.erase(0, 4);
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
  const bool plain = std::all_of(bus_id.begin(), bus_id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == ':' || c == '.';
  });
  return plain && bus_id.size() == 12 ? bus_id : "";
}

}  // namespace

Result<Locality> SysfsLocality(const std::string& pci_bus_id, const std::string& sysfs_root) {
  const std::string name = SysfsName(pci_bus_id);
  if (name.empty()) return Fail(Code::kUnavailable, "its place on the PCI bus is not known");
  const std::string device = sysfs_root + "/bus/pci/devices/" + name;
  const auto cpus = ParseCpuList(FirstLine(device + "/local_cpulist"));
  if (!cpus || cpus->empty())
    return Fail(Code::kUnavailable, "neither NVML nor the kernel says which processors are near it");
  Locality locality{.cpus = *cpus, .memory_nodes = {}, .source = "sysfs"};
  // -1 where the firmware does not tell.
  const std::string node = FirstLine(device + "/numa_node");
  unsigned number = 0;
  const auto parsed = std::from_chars(node.data(), node.data() + node.size(), number);
  if (parsed.ec == std::errc() && number < kMaxCpus) locality.memory_nodes.push_back(number);
  return locality;
}

Result<Locality> FindLocality(Nvml& nvml, const Device& device, const std::string& sysfs_root) {
  auto said = nvml.Near(device.uuid);
  if (said && !said->cpus.empty()) return said;
  return SysfsLocality(device.pci_bus_id, sysfs_root);
}

}  // namespace gpumux::gpu
