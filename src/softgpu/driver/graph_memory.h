// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "sim/pool_layout.h"
#include "softgpu/driver/driver.h"

namespace gpumux::softgpu {

struct GraphArena;

// One allocation of a graph: an address that is fixed when its node is made.
struct GraphPiece {
  std::shared_ptr<GraphArena> arena;
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool live = false;          // a launch has made it and nothing has freed it
  uint64_t freed_by = 0;      // the id of the node of its own graph that frees it; 0: none
  uint64_t allocated_by = 0;  // its node's id
};

// The addresses of one graph's memory nodes, in extents of whole chunks. It has
// memory behind all of them or behind none.
struct GraphArena {
  Device* device = nullptr;
  struct Extent {
    uint64_t base, bytes;
  };
  std::vector<Extent> extents;
  std::vector<std::weak_ptr<GraphPiece>> pieces;
  bool mapped = false;
  uint64_t live = 0;       // pieces
  uint64_t in_flight = 0;  // launches, and frees that a stream has yet to reach
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const Extent& extent : extents) sum += extent.bytes;
    return sum;
  }
  bool idle() const { return live == 0 && in_flight == 0; }
  ~GraphArena();
};

// Memory of graphs: taken in chunks of 32 MiB when a graph is uploaded or first
// launched, kept when it is freed, moved to another graph that needs it once
// nothing uses it, given back by a trim. As measured on an H200.
class GraphMemory {
 public:
  static GraphMemory& Get();

  std::shared_ptr<GraphArena> CreateArena(Device* device);
  // An address for a new piece; `may_overlap` says whether an earlier piece is
  // freed before the new one is made.
  cuda::CUresult Place(const std::shared_ptr<GraphArena>& arena, uint64_t bytes,
                       const std::function<bool(const GraphPiece&)>& may_overlap,
                       std::shared_ptr<GraphPiece>* out);

  // Memory behind the arena; counts a launch in flight until EndLaunch.
  cuda::CUresult BeginLaunch(GraphArena& arena);
  cuda::CUresult Upload(GraphArena& arena);
  void EndLaunch(GraphArena& arena);

  void SetLive(GraphPiece& piece);
  // The piece that lives at `address`; null if none starts there.
  std::shared_ptr<GraphPiece> FindLive(uint64_t address);
  // Not live any more; its memory is busy until EndLaunch on its arena.
  bool BeginFree(GraphPiece& piece);
  // The piece of which the address is part, live or not: for queries.
  std::optional<GraphPiece> PieceAt(uint64_t address);
  // Any node's piece that starts there.
  std::shared_ptr<GraphPiece> FindPiece(uint64_t address);

  void Trim(Device* device);
  cuda::CUresult GetAttribute(Device* device, int attribute, uint64_t* value);
  cuda::CUresult SetAttribute(Device* device, int attribute, uint64_t value);
  // The device's primary context has gone.
  void Reset(Device* device);

 private:
  friend struct GraphArena;
  struct PerDevice {
    uint64_t base = 0;  // of the addresses; 0: none yet
    sim::PoolLayout addresses{kRangeBytes};
    uint64_t spare = 0;     // taken, and behind no arena
    uint64_t reserved = 0;  // taken
    uint64_t used_high = 0, reserved_high = 0;
    std::set<GraphArena*> arenas;
  };
  static constexpr uint64_t kRangeBytes = 4ULL << 40;

  cuda::CUresult MapLocked(GraphArena& arena);
  void Drop(GraphArena& arena);

  std::recursive_mutex mutex_;
  std::map<Device*, PerDevice> devices_;
  std::map<uint64_t, std::shared_ptr<GraphPiece>> live_;       // by address
  std::multimap<uint64_t, std::weak_ptr<GraphPiece>> pieces_;  // by address
};

}  // namespace gpumux::softgpu
