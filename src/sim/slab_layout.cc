// SPDX-License-Identifier: Apache-2.0
#include "sim/slab_layout.h"

#include <algorithm>

namespace gpumux::sim {

std::optional<uint64_t> SlabLayout::Place(uint64_t bytes) {
  const uint64_t need = RoundUp(bytes, kSmallStepBytes);
  bool skip_full = true;
  for (auto slab = slabs_.lower_bound(first_candidate_); slab != slabs_.end(); ++slab) {
    auto& holes = slab->second.holes;
    if (skip_full && holes.empty()) {
      first_candidate_ = slab->first + 1;
      continue;
    }
    skip_full = false;
    for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
      if (hole->second < need) continue;
      const auto [offset, size] = *hole;
      holes.erase(hole);
      if (size > need) holes.emplace(offset + need, size - need);
      ++slab->second.pieces;
      const uint64_t address = slab->first + offset;
      pieces_.emplace(address, bytes);
      return address;
    }
  }
  return std::nullopt;
}

void SlabLayout::AddSlab(uint64_t base) {
  slabs_[base].holes.emplace(0, kPageBytes);
  first_candidate_ = std::min(first_candidate_, base);
}

std::optional<SlabLayout::Freed> SlabLayout::Free(uint64_t address) {
  auto piece = pieces_.find(address);
  if (piece == pieces_.end()) return std::nullopt;
  uint64_t size = RoundUp(piece->second, kSmallStepBytes);
  pieces_.erase(piece);
  const uint64_t base = address / kPageBytes * kPageBytes;
  Slab& slab = slabs_.at(base);
  if (--slab.pieces == 0) {
    slabs_.erase(base);
    return Freed{base};
  }
  uint64_t offset = address - base;
  auto after = slab.holes.lower_bound(offset);
  if (after != slab.holes.end() && after->first == offset + size) {
    size += after->second;
    after = slab.holes.erase(after);
  }
  if (after != slab.holes.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      slab.holes.erase(before);
    }
  }
  slab.holes.emplace(offset, size);
  first_candidate_ = std::min(first_candidate_, base);
  return Freed{};
}

std::optional<uint64_t> SlabLayout::SizeOf(uint64_t address) const {
  auto piece = pieces_.find(address);
  if (piece == pieces_.end()) return std::nullopt;
  return piece->second;
}

}  // namespace gpumux::sim
