// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <optional>
#include <string>

namespace gpumux::gpu {

// How people call a GPU, or an instance of one that is partitioned (MIG): "0", "0:2". The
// numbers are NVML's, so nvidia-smi's; both change from boot to boot, the UUID does not.
struct Index {
  Index(unsigned gpu_index = 0) : gpu(gpu_index) {}  // NOLINT(*-explicit-*): a number is one
  Index(unsigned gpu_index, unsigned of_instance) : gpu(gpu_index), instance(of_instance) {}

  unsigned gpu;
  std::optional<unsigned> instance;  // of the list of MIG devices, which has holes

  auto operator<=>(const Index&) const = default;
  std::string Label() const {
    return std::to_string(gpu) + (instance ? ":" + std::to_string(*instance) : "");
  }
};

}  // namespace gpumux::gpu
