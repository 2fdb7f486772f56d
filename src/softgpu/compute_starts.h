// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gpumux::softgpu {

// Where compute instances of so many slices may begin in a GPU instance of `whole`: as GPU instances do in
// a GPU (no source says).
inline std::vector<uint32_t> ComputeStarts(uint32_t whole, uint32_t slices) {
  const uint32_t step = slices > 2 ? std::max(4U, slices) : slices;
  std::vector<uint32_t> starts;
  for (uint32_t start = 0; start + slices <= whole; start += step) starts.push_back(start);
  return starts;
}

}  // namespace gpumux::softgpu
