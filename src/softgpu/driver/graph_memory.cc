// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/graph_memory.h"

#include <algorithm>

#include "sim/slab_layout.h"
#include "softgpu/driver/address_space.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {
constexpr uint64_t kStep = 512;
}

GraphMemory& GraphMemory::Get() {
  static GraphMemory* memory = new GraphMemory;
  return *memory;
}

GraphArena::~GraphArena() { GraphMemory::Get().Drop(*this); }

std::shared_ptr<GraphArena> GraphMemory::CreateArena(Device* device) {
  auto arena = std::make_shared<GraphArena>();
  arena->device = device;
  std::lock_guard lock(mutex_);
  devices_[device].arenas.insert(arena.get());
  return arena;
}

void GraphMemory::Drop(GraphArena& arena) {
  std::lock_guard lock(mutex_);
  PerDevice& device = devices_[arena.device];
  device.arenas.erase(&arena);
  if (arena.mapped) device.spare += arena.bytes();
  for (const auto& extent : arena.extents) {
    ForgetContents(extent.base, extent.bytes);
    Memory::Get().RemoveGraphRange(extent.base);
    device.addresses.Free(extent.base - device.base);
    // The layout keeps chunks as if they had memory; here they are addresses.
  }
  std::erase_if(pieces_, [](const auto& entry) { return entry.second.expired(); });
}

CUresult GraphMemory::Place(const std::shared_ptr<GraphArena>& arena, uint64_t bytes,
                            const std::function<bool(const GraphPiece&)>& may_overlap,
                            std::shared_ptr<GraphPiece>* out) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kRangeBytes / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(mutex_);
  PerDevice& device = devices_[arena->device];
  if (device.base == 0) {
    device.base = MapRegion(kRangeBytes, sim::kPoolChunkBytes, false);
    if (device.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // What of the arena's extents is in the way, in order of addresses.
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (const auto& weak : arena->pieces) {
    const auto piece = weak.lock();
    if (piece == nullptr || may_overlap(*piece)) continue;
    taken.emplace_back(piece->address, piece->address + sim::RoundUp(piece->bytes, kStep));
  }
  std::sort(taken.begin(), taken.end());
  uint64_t address = 0;
  for (const auto& extent : arena->extents) {
    uint64_t at = extent.base;
    for (const auto& [begin, end] : taken) {
      if (end <= at || begin >= extent.base + extent.bytes) continue;
      if (begin >= at + bytes) break;
      at = end;
    }
    if (at + bytes <= extent.base + extent.bytes) {
      address = at;
      break;
    }
  }
  if (address == 0) {
    // New addresses: they get memory when the graph is launched.
    const uint64_t whole = sim::RoundUp(bytes, sim::kPoolChunkBytes);
    const auto place = device.addresses.Find(whole);
    if (!place) return CUDA_ERROR_OUT_OF_MEMORY;
    device.addresses.Commit(*place, whole);
    address = device.base + place->offset;
    if (arena->mapped) {
      // It was all or nothing: what it has goes to the spare part, and the next
      // launch takes what all of it needs.
      device.spare += arena->bytes();
      arena->mapped = false;
    }
    arena->extents.push_back({address, whole});
    Memory::Get().AddGraphRange(address, whole, arena->device);
  }
  auto piece = std::make_shared<GraphPiece>();
  piece->arena = arena;
  piece->address = address;
  piece->bytes = bytes;
  arena->pieces.push_back(piece);
  pieces_.emplace(address, piece);
  *out = std::move(piece);
  return CUDA_SUCCESS;
}

CUresult GraphMemory::MapLocked(GraphArena& arena) {
  if (arena.mapped || arena.extents.empty()) return CUDA_SUCCESS;
  PerDevice& device = devices_[arena.device];
  const uint64_t need = arena.bytes();
  for (GraphArena* other : device.arenas) {
    if (device.spare >= need) break;
    if (other == &arena || !other->mapped || !other->idle()) continue;
    other->mapped = false;
    device.spare += other->bytes();
    for (const auto& extent : other->extents) ForgetContents(extent.base, extent.bytes);
  }
  if (device.spare < need) {
    if (!Memory::Get().TakeForGraphs(arena.device, need - device.spare)) return CUDA_ERROR_OUT_OF_MEMORY;
    device.reserved += need - device.spare;
    device.spare = need;
  }
  device.spare -= need;
  arena.mapped = true;
  device.reserved_high = std::max(device.reserved_high, device.reserved);
  device.used_high = std::max(device.used_high, device.reserved);
  return CUDA_SUCCESS;
}

CUresult GraphMemory::Upload(GraphArena& arena) {
  std::lock_guard lock(mutex_);
  return MapLocked(arena);
}

CUresult GraphMemory::BeginLaunch(GraphArena& arena) {
  std::lock_guard lock(mutex_);
  if (CUresult error = MapLocked(arena); error != CUDA_SUCCESS) return error;
  ++arena.in_flight;
  return CUDA_SUCCESS;
}

void GraphMemory::EndLaunch(GraphArena& arena) {
  std::lock_guard lock(mutex_);
  if (arena.in_flight > 0) --arena.in_flight;
}

void GraphMemory::SetLive(GraphPiece& piece) {
  std::lock_guard lock(mutex_);
  if (piece.live) return;
  piece.live = true;
  ++piece.arena->live;
  if (auto known = FindPiece(piece.address); known != nullptr) {
    // Of pieces that share an address only one lives at a time.
    for (auto [it, end] = pieces_.equal_range(piece.address); it != end; ++it) {
      auto candidate = it->second.lock();
      if (candidate.get() == &piece) known = candidate;
    }
    live_[piece.address] = known;
  }
}

std::shared_ptr<GraphPiece> GraphMemory::FindLive(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto it = live_.find(address);
  return it != live_.end() ? it->second : nullptr;
}

bool GraphMemory::BeginFree(GraphPiece& piece) {
  std::lock_guard lock(mutex_);
  if (!piece.live) return false;
  piece.live = false;
  --piece.arena->live;
  ++piece.arena->in_flight;
  live_.erase(piece.address);
  return true;
}

std::shared_ptr<GraphPiece> GraphMemory::FindPiece(uint64_t address) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<GraphPiece> found;
  for (auto [it, end] = pieces_.equal_range(address); it != end; ++it) {
    if (auto piece = it->second.lock()) found = piece;  // the newest
  }
  return found;
}

std::optional<GraphPiece> GraphMemory::PieceAt(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto live = live_.upper_bound(address);
  if (live != live_.begin()) {
    --live;
    if (address - live->first < live->second->bytes) return *live->second;
  }
  for (auto it = pieces_.upper_bound(address); it != pieces_.begin();) {
    --it;
    const auto piece = it->second.lock();
    if (piece == nullptr) continue;
    if (address - piece->address < piece->bytes) return *piece;
    if (address - piece->address > sim::kMaxAllocationBytes) break;
  }
  return std::nullopt;
}

void GraphMemory::Trim(Device* ordinal) {
  std::lock_guard lock(mutex_);
  PerDevice& device = devices_[ordinal];
  for (GraphArena* arena : device.arenas) {
    if (!arena->mapped || !arena->idle()) continue;
    arena->mapped = false;
    device.spare += arena->bytes();
    for (const auto& extent : arena->extents) ForgetContents(extent.base, extent.bytes);
  }
  if (device.spare > 0) Memory::Get().GiveForGraphs(ordinal, device.spare);
  device.reserved -= device.spare;
  device.spare = 0;
}

CUresult GraphMemory::GetAttribute(Device* ordinal, int attribute, uint64_t* value) {
  std::lock_guard lock(mutex_);
  const PerDevice& device = devices_[ordinal];
  switch (attribute) {
    // What graphs have used stays with them until a trim: the two are the same.
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *value = device.reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *value = device.used_high;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *value = device.reserved_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult GraphMemory::SetAttribute(Device* ordinal, int attribute, uint64_t value) {
  std::lock_guard lock(mutex_);
  PerDevice& device = devices_[ordinal];
  if (value != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
    device.used_high = device.reserved;
  } else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    device.reserved_high = device.reserved;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void GraphMemory::Reset(Device* ordinal) {
  std::lock_guard lock(mutex_);
  auto it = devices_.find(ordinal);
  if (it == devices_.end()) return;
  std::erase_if(live_, [&](const auto& entry) {
    if (entry.second->arena->device != ordinal) return false;
    entry.second->live = false;
    return true;
  });
  for (GraphArena* arena : it->second.arenas) arena->live = arena->in_flight = 0;
  Trim(ordinal);
}

}  // namespace gpumux::softgpu
