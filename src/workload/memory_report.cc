// SPDX-License-Identifier: Apache-2.0
#include "workload/memory_report.h"

#include <unistd.h>

#include <cstring>

namespace gpumux::workload {

MemoryReport::~MemoryReport() = default;

void MemoryReport::FollowDevice(const Driver& driver, cuda::CUdevice device) {
  if (!wanted_) return;
  cuda::CUuuid raw{};
  if (driver.DeviceGetUuid(&raw, device) != cuda::CUDA_SUCCESS) return;
  // The library by its plain name, as any monitoring program opens it.
  auto nvml = gpu::Nvml::Open(gpu::GpuSource{});
  if (!nvml) return;
  nvml_ = std::move(*nvml);
  uuid_.emplace();
  std::memcpy(uuid_->bytes.data(), raw.bytes, sizeof raw.bytes);
}

void MemoryReport::After(const Driver& driver, const char* step) {
  if (!wanted_) return;
  const auto now = std::chrono::steady_clock::now();
  MemoryStep entry;
  entry.step = step;
  entry.took_ms = std::chrono::duration<double, std::milli>(now - last_).count();
  size_t free_bytes = 0, total_bytes = 0;
  if (driver.MemGetInfo(&free_bytes, &total_bytes) == cuda::CUDA_SUCCESS) {
    entry.free_bytes = free_bytes;
    entry.total_bytes = total_bytes;
  }
  if (nvml_) {
    if (const auto memory = nvml_->Memory(*uuid_)) {
      entry.nvml_used_bytes = memory->used_bytes;
      entry.nvml_free_bytes = memory->free_bytes;
    }
    if (const auto processes = nvml_->Processes(*uuid_)) {
      entry.nvml_own_bytes = 0;
      for (const gpu::ProcessUse& process : *processes) {
        if (process.pid == ::getpid()) entry.nvml_own_bytes = process.used_bytes;
      }
    }
  }
  steps_.push_back(std::move(entry));
  last_ = std::chrono::steady_clock::now();
}

}  // namespace gpumux::workload
