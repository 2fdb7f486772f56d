// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

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

// "0", "0:2"; nullopt: neither, or numbers that no machine has.
inline std::optional<Index> ParseIndex(std::string_view text) {
  constexpr unsigned kMost = 1024;
  const auto number = [](std::string_view part) -> std::optional<unsigned> {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size() || value >= kMost) return std::nullopt;
    return value;
  };
  const size_t colon = text.find(':');
  const auto gpu = number(text.substr(0, colon));
  if (!gpu || colon == std::string_view::npos) return gpu ? std::optional(Index(*gpu)) : std::nullopt;
  const auto instance = number(text.substr(colon + 1));
  return instance ? std::optional(Index(*gpu, *instance)) : std::nullopt;
}

}  // namespace gpumux::gpu
