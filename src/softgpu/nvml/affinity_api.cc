// SPDX-License-Identifier: Apache-2.0
//
// What of the machine is near each GPU: GPUs in NVML's order are spread over the
// memory nodes that the kernel shows, as the slots of a server are. A folder
// `sys` in GPUMUX_SOFTGPU_DIR stands for /sys.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/cpu_list.h"
#include "softgpu/nvml/state.h"

namespace gpumux::nvml {

namespace {

// Beyond these a caller's set is left as it is: no machine has more.
constexpr unsigned kMaxWords = kMaxCpus / 64;

CpuList ListIn(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return ParseCpuList(line).value_or(CpuList{});
}

struct Near {
  CpuList cpus, nodes;
};

Near NearestTo(unsigned index, unsigned count) {
  std::error_code none;
  std::string root = softgpu::FindLocation().dir + "/sys";
  if (!std::filesystem::is_directory(root, none)) root = "/sys";
  const std::string folder = root + "/devices/system/";
  const CpuList nodes = ListIn(folder + "node/has_cpu");
  if (nodes.empty()) return {.cpus = ListIn(folder + "cpu/online"), .nodes = {0}};
  const unsigned node = nodes[index * nodes.size() / count];
  return {.cpus = ListIn(folder + "node/node" + std::to_string(node) + "/cpulist"), .nodes = {node}};
}

nvmlReturn_t Fill(nvmlDevice_t handle, unsigned size, unsigned long* out, CpuList Near::* which) {
  GPUMUX_NVML_DEVICE(device, handle, out);
  if (size == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const CpuList list = NearestTo(device->index, Get().count).*which;
  if (list.empty()) return NVML_ERROR_NOT_SUPPORTED;
  const auto words = WordsOfCpus(list);
  if (words.size() > size) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::fill(out, out + std::min(size, kMaxWords), 0);
  std::copy(words.begin(), words.end(), out);
  return NVML_SUCCESS;
}

}  // namespace

GPUMUX_NVML nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long* set) {
  return Fill(device, size, set, &Near::cpus);
}

GPUMUX_NVML nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned size, unsigned long* set,
                                                unsigned) {
  return Fill(device, size, set, &Near::cpus);
}

GPUMUX_NVML nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long* set, unsigned) {
  return Fill(device, size, set, &Near::nodes);
}

}  // namespace gpumux::nvml
