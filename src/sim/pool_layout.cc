// SPDX-License-Identifier: Apache-2.0
#include "sim/pool_layout.h"

#include <algorithm>

#include "sim/slab_layout.h"

namespace gpumux::sim {

std::optional<PoolLayout::Placement> PoolLayout::Find(uint64_t bytes) const {
  const uint64_t need = RoundUp(bytes, kSmallStepBytes);
  std::optional<Placement> growing;
  for (const auto& [offset, size] : holes_) {
    if (size < need) continue;
    Placement place{offset, {}};
    for (uint64_t chunk = offset / kPoolChunkBytes; chunk * kPoolChunkBytes < offset + need; ++chunk) {
      if (!chunks_.contains(chunk)) place.new_chunks.push_back(chunk);
    }
    if (place.new_chunks.empty()) return place;
    if (!growing) growing = std::move(place);
  }
  return growing;
}

void PoolLayout::Commit(const Placement& placement, uint64_t bytes) {
  const uint64_t need = RoundUp(bytes, kSmallStepBytes);
  auto hole = holes_.find(placement.offset);
  const uint64_t size = hole->second;
  holes_.erase(hole);
  if (size > need) holes_.emplace(placement.offset + need, size - need);
  pieces_.emplace(placement.offset, need);
  chunks_.insert(placement.new_chunks.begin(), placement.new_chunks.end());
}

bool PoolLayout::Free(uint64_t offset) {
  auto piece = pieces_.find(offset);
  if (piece == pieces_.end()) return false;
  uint64_t size = piece->second;
  pieces_.erase(piece);
  auto after = holes_.lower_bound(offset);
  if (after != holes_.end() && after->first == offset + size) {
    size += after->second;
    after = holes_.erase(after);
  }
  if (after != holes_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return true;
    }
  }
  holes_.emplace(offset, size);
  return true;
}

bool PoolLayout::Resize(uint64_t offset, uint64_t bytes) {
  auto piece = pieces_.find(offset);
  const uint64_t need = RoundUp(bytes, kSmallStepBytes);
  if (piece == pieces_.end() || need > piece->second || need == 0) return false;
  if (need < piece->second) {
    const uint64_t rest = piece->second - need;
    piece->second = need;
    pieces_.emplace(offset + need, rest);
    Free(offset + need);
  }
  return true;
}

bool PoolLayout::ChunkIsFree(uint64_t chunk) const {
  const uint64_t begin = chunk * kPoolChunkBytes;
  auto hole = holes_.upper_bound(begin);
  if (hole == holes_.begin()) return false;
  --hole;
  return hole->first <= begin && hole->first + hole->second >= begin + kPoolChunkBytes;
}

std::vector<uint64_t> PoolLayout::Trim(uint64_t keep_bytes) {
  std::vector<uint64_t> gone;
  for (auto it = chunks_.end(); it != chunks_.begin() && reserved() > keep_bytes;) {
    --it;
    if (!ChunkIsFree(*it)) continue;
    gone.push_back(*it);
    it = chunks_.erase(it);
  }
  return gone;
}

std::optional<uint64_t> PoolLayout::SizeOf(uint64_t offset) const {
  auto piece = pieces_.find(offset);
  if (piece == pieces_.end()) return std::nullopt;
  return piece->second;
}

}  // namespace gpumux::sim
