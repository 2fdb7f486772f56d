// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/nvml.h"
#include "workload/driver.h"

namespace gpumux::workload {

// Memory at one step of the program's life.
struct MemoryStep {
  std::string step;
  double took_ms = 0;  // since the step before
  // cuMemGetInfo; nullopt without a context
  std::optional<uint64_t> free_bytes, total_bytes;
  // NVML; nullopt without it. `own` is this process's figure.
  std::optional<uint64_t> nvml_used_bytes, nvml_free_bytes, nvml_own_bytes;
};

// Reads memory after each step when asked to; costs nothing otherwise.
class MemoryReport {
 public:
  explicit MemoryReport(bool wanted) : wanted_(wanted) {}
  ~MemoryReport();
  // From here NVML's figures are there too, if it is.
  void FollowDevice(const Driver& driver, cuda::CUdevice device);
  void After(const Driver& driver, const char* step);
  const std::vector<MemoryStep>& steps() const { return steps_; }

 private:
  bool wanted_;
  std::unique_ptr<gpu::Nvml> nvml_;
  std::optional<gpu::Uuid> uuid_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::vector<MemoryStep> steps_;
};

}  // namespace gpumux::workload
