// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::softgpu::mps {

// What the variables and commands of MPS say. Pure, and for text of any origin.

// CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY. Unset: a real driver uses
// /tmp/nvidia-mps and /var/log/nvidia-mps; a directory of software GPUs is a
// machine of its own, and has these two below it.
std::string PipeDirectory(const char* variable, const std::string& softgpu_dir);
std::string LogDirectory(const char* variable, const std::string& softgpu_dir);

// Above 0 and at most 100.
std::optional<double> ParsePercentage(std::string_view text);
// "0" or "1": below normal.
std::optional<bool> ParsePriority(std::string_view text);

// "2G", "512M".
std::optional<uint64_t> ParseLimitSize(std::string_view text);

struct Limit {
  std::string device;  // an ordinal or a UUID, as it was given
  uint64_t bytes = 0;
};
// "0=1G,GPU-...=512M".
std::optional<std::vector<Limit>> ParseLimits(std::string_view text);
// The index in `uuids` of what `device` names.
std::optional<size_t> FindDevice(std::string_view device, const std::vector<std::string>& uuids);

// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT of a program that sees the GPUs `uuids`: the
// limit of each, 0 for none. As measured, one entry that names none of them
// drops them all.
std::vector<uint64_t> ClientLimits(std::string_view text, const std::vector<std::string>& uuids);

}  // namespace gpumux::softgpu::mps
