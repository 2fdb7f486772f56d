// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml_processes.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace gpumux::gpu {

using namespace gpumux::nvml;  // NOLINT: the binary interface's own names

namespace {
// Above any machine of today; a count beyond it means that the answer is not one.
constexpr unsigned kMaxProcesses = 1u << 16;
}  // namespace

Result<std::vector<ProcessUse>> NvmlProcessLists::Of(nvmlDevice_t device, const std::string& name) {
  std::vector<ProcessUse> all;
  if (Status status = List("nvmlDeviceGetComputeRunningProcesses", device, name, all); !status) {
    return tl::unexpected(status.error());
  }
  // A driver without graphics support lacks this one; compute is what counts.
  (void)List("nvmlDeviceGetGraphicsRunningProcesses", device, name, all);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.pid, b.used_bytes.value_or(0)) < std::pair(b.pid, a.used_bytes.value_or(0));
  });
  // A process with both kinds of context is listed twice with the same sum.
  all.erase(std::unique(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.pid == b.pid; }),
            all.end());
  return all;
}

// The newest version that the library has, into `all`.
Status NvmlProcessLists::List(const std::string& stem, nvmlDevice_t device, const std::string& name,
                              std::vector<ProcessUse>& all) {
  for (const char* suffix : {"_v3", "_v2", ""}) {
    if (void* function = dlsym(library_, (stem + suffix).c_str())) {
      const size_t declared = *suffix != 0 ? sizeof(nvmlProcessInfo_t) : sizeof(nvmlProcessInfo_v1_t);
      return ListBy(function, declared, device, name, all);
    }
  }
  return Fail(Code::kUnsupported, "this NVML does not list processes");
}

// Of how many bytes an entry is, the library shows by what it writes: some
// releases fill others than the name stands for.
Status NvmlProcessLists::ListBy(void* symbol, size_t declared, nvmlDevice_t device, const std::string& name,
                                std::vector<ProcessUse>& all) {
  constexpr size_t kLargestEntry = 64;
  constexpr std::byte kUntouched{0x5a};  // no pid, size or instance has this in its last byte
  auto function = reinterpret_cast<nvmlReturn_t (*)(nvmlDevice_t, unsigned*, void*)>(symbol);
  size_t& known = entry_bytes_[symbol];
  std::vector<std::byte> buffer;
  unsigned room = 64, count = 0;
  // The list may grow between two calls: ask again with room to spare.
  for (bool exact = false;;) {
    buffer.assign(room * kLargestEntry, kUntouched);
    count = room;
    const nvmlReturn_t result = function(device, &count, buffer.data());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && room < kMaxProcesses) {
      room = std::min(kMaxProcesses, std::max(count + 16, room * 2));
      exact = false;
      continue;
    }
    if (result != NVML_SUCCESS) return error_(result, "processes of " + name);
    count = std::min(count, room);
    if (count == 0 || known != 0 || (exact && count == room)) break;
    // Once more for as many as there are: nothing beyond them is written then.
    room = count;
    exact = true;
  }
  if (known == 0 && count > 0) {
    const auto last =
        std::find_if(buffer.rbegin(), buffer.rend(), [](std::byte b) { return b != kUntouched; });
    const auto written = static_cast<size_t>(buffer.rend() - last);
    known = declared;
    for (const size_t size : {16, 24, 32}) {
      if (size * count == written) known = size;
    }
  }
  for (unsigned i = 0; i < count; ++i) {
    nvmlProcessInfo_v1_t info;
    std::memcpy(&info, &buffer[i * known], sizeof info);
    ProcessUse use{.pid = static_cast<pid_t>(info.pid), .used_bytes = {}};
    if (info.usedGpuMemory != kValueNotAvailable) use.used_bytes = info.usedGpuMemory;
    all.push_back(use);
  }
  return {};
}

}  // namespace gpumux::gpu
