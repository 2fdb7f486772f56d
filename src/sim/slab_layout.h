// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

namespace gpumux::sim {

inline constexpr uint64_t kPageBytes = 2 << 20;              // what the device hands out at least
inline constexpr uint64_t kSmallLimitBytes = 1 << 20;        // up to here a plain allocation shares a slab
inline constexpr uint64_t kSmallStepBytes = 512;             // in steps of this
inline constexpr uint64_t kMaxAllocationBytes = 1ULL << 46;  // anything larger is out of memory at once

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t step) { return (bytes + step - 1) / step * step; }

// Whether a plain allocation of `bytes` shares a slab with others.
constexpr bool IsSmall(uint64_t bytes) { return bytes <= kSmallLimitBytes; }
// What a plain allocation that does not share a slab takes from the device.
constexpr uint64_t RoundPlain(uint64_t bytes) { return RoundUp(bytes, kPageBytes); }
// Rows of a pitched allocation start at multiples of 512 bytes.
constexpr uint64_t RoundPitch(uint64_t width_bytes) { return RoundUp(width_bytes, kSmallStepBytes); }
// What a module's global variables take from the device.
constexpr uint64_t RoundGlobals(uint64_t bytes) { return RoundUp(bytes, kPageBytes); }

// Where small plain allocations lie within their 2 MiB slabs: first fit, and a
// slab is given back with its last piece. The caller provides the slabs.
class SlabLayout {
 public:
  // An address, or nothing: then AddSlab first. `bytes` in [1, kSmallLimitBytes].
  std::optional<uint64_t> Place(uint64_t bytes);
  void AddSlab(uint64_t base);

  struct Freed {
    std::optional<uint64_t> empty_slab;  // its base: give it back to the device
  };
  // Nothing if no piece starts at `address`.
  std::optional<Freed> Free(uint64_t address);

  // The requested size of the piece that starts at `address`.
  std::optional<uint64_t> SizeOf(uint64_t address) const;
  size_t slabs() const { return slabs_.size(); }

 private:
  struct Slab {
    std::map<uint64_t, uint64_t> holes;  // offset -> bytes, never adjacent
    uint64_t pieces = 0;
  };
  std::map<uint64_t, Slab> slabs_;
  std::unordered_map<uint64_t, uint64_t> pieces_;  // address -> requested bytes
  // No slab below this one has a hole that would fit what failed last; keeps
  // a long run of small allocations from walking every full slab.
  uint64_t first_candidate_ = 0;
};

}  // namespace gpumux::sim
