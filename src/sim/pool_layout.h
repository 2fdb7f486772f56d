// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace gpumux::sim {

inline constexpr uint64_t kPoolChunkBytes = 32 << 20;

// Where stream-ordered allocations lie in the address range of their pool, and
// which 32 MiB chunks of that range have memory behind them. An allocation may
// lie across chunks; a chunk goes back to the device only when nothing lies in
// it. Offsets are from the start of the pool's range.
class PoolLayout {
 public:
  explicit PoolLayout(uint64_t range_bytes) { holes_.emplace(0, range_bytes); }

  struct Placement {
    uint64_t offset = 0;
    std::vector<uint64_t> new_chunks;  // chunk numbers that need memory first
  };
  // Where `bytes` (> 0) would go; nothing if the range is full. Changes nothing.
  std::optional<Placement> Find(uint64_t bytes) const;
  // Takes the place that Find returned, whose new chunks now have memory.
  void Commit(const Placement& placement, uint64_t bytes);
  // False if nothing starts at `offset`.
  bool Free(uint64_t offset);
  // A live allocation changes owner and size within the bytes it already has.
  bool Resize(uint64_t offset, uint64_t bytes);

  // Takes memory from free chunks, the last first, until no more than
  // `keep_bytes` are reserved; returns their numbers.
  std::vector<uint64_t> Trim(uint64_t keep_bytes);

  uint64_t reserved() const { return chunks_.size() * kPoolChunkBytes; }
  std::optional<uint64_t> SizeOf(uint64_t offset) const;
  size_t live() const { return pieces_.size(); }

 private:
  bool ChunkIsFree(uint64_t chunk) const;

  std::map<uint64_t, uint64_t> holes_;   // offset -> bytes
  std::map<uint64_t, uint64_t> pieces_;  // offset -> bytes it occupies
  std::set<uint64_t> chunks_;            // with memory behind them
};

}  // namespace gpumux::sim
