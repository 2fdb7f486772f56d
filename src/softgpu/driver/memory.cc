// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/memory.h"

#include <algorithm>

#include "sim/slab_layout.h"
#include "softgpu/driver/address_space.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/graph_memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

Memory& Memory::Get() {
  static Memory* memory = new Memory;
  return *memory;
}

bool Memory::Take(Device* device, uint64_t bytes) {
  return bytes <= sim::kMaxAllocationBytes && Driver::Get().Change(*device, Op::kTake, bytes) == Answer::kOk;
}

void Memory::Give(Device* device, uint64_t bytes) {
  if (bytes > 0) Driver::Get().Change(*device, Op::kGive, bytes);
}

bool Memory::TakeOrReclaim(Device* device, uint64_t bytes, std::unique_lock<std::mutex>&) {
  if (Take(device, bytes)) return true;
  // What pools keep without using it is there for whoever needs it.
  return ReclaimPools(device, nullptr) > 0 && Take(device, bytes);
}

CUresult Memory::AllocPlain(Context* context, uint64_t bytes, CUdeviceptr* out) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Device* device = context->device;
  std::unique_lock lock(mutex_);
  Range range;
  range.size = bytes;
  range.context = context;
  range.device = device;
  range.id = next_id_++;
  if (sim::IsSmall(bytes)) {
    range.kind = Range::Kind::kSmall;
    auto place = context->slabs.Place(bytes);
    if (!place) {
      if (!TakeOrReclaim(device, sim::kPageBytes, lock)) return CUDA_ERROR_OUT_OF_MEMORY;
      const uint64_t slab = MapRegion(sim::kPageBytes, sim::kPageBytes, false);
      if (slab == 0) {
        Give(device, sim::kPageBytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
      context->slabs.AddSlab(slab);
      place = context->slabs.Place(bytes);
    }
    range.base = *place;
    range.file_backed = shared_.contains(range.base / sim::kPageBytes * sim::kPageBytes);
  } else {
    range.taken = sim::RoundPlain(bytes);
    if (!TakeOrReclaim(device, range.taken, lock)) return CUDA_ERROR_OUT_OF_MEMORY;
    range.base = MapRegion(range.taken, sim::kPageBytes, false);
    if (range.base == 0) {
      Give(device, range.taken);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  *out = range.base;
  ranges_.emplace(range.base, std::move(range));
  return CUDA_SUCCESS;
}

void Memory::AddGraphRange(uint64_t base, uint64_t bytes, Device* device) {
  std::lock_guard lock(mutex_);
  Range range;
  range.kind = Range::Kind::kGraph;
  range.base = base;
  range.size = bytes;
  range.device = device;
  range.id = next_id_++;
  ranges_.emplace(base, std::move(range));
}

void Memory::RemoveGraphRange(uint64_t base) {
  std::lock_guard lock(mutex_);
  ranges_.erase(base);
}

bool Memory::TakeForGraphs(Device* device, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  return TakeOrReclaim(device, bytes, lock);
}

void Memory::GiveForGraphs(Device* device, uint64_t bytes) { Give(device, bytes); }

CUresult Memory::Free(CUdeviceptr pointer) {
  if (pointer == 0) return CUDA_SUCCESS;
  if (const auto piece = GraphMemory::Get().FindLive(pointer)) {
    if (Context* current = CurrentOrNull(); current != nullptr) {
      if (CUresult error = Engine::Get().SynchronizeContext(current); error != CUDA_SUCCESS) return error;
    }
    if (!GraphMemory::Get().BeginFree(*piece)) return CUDA_ERROR_INVALID_VALUE;
    GraphMemory::Get().EndLaunch(*piece->arena);
    return CUDA_SUCCESS;
  }
  Context* context;
  Pool* imported = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto it = ranges_.find(pointer);
    if (it == ranges_.end() || it->second.freed) return CUDA_ERROR_INVALID_VALUE;
    switch (it->second.kind) {
      case Range::Kind::kSmall:
      case Range::Kind::kPlain:
      case Range::Kind::kPooled:
      case Range::Kind::kManaged:
        break;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (it->second.kind == Range::Kind::kPooled && it->second.pool->imported) imported = it->second.pool;
    context = it->second.context;
  }
  // A free waits for the work that may still use the memory.
  if (context != nullptr && context->alive) {
    if (CUresult error = Engine::Get().SynchronizeContext(context); error != CUDA_SUCCESS) return error;
  }
  if (imported != nullptr) {
    uint64_t ticket = 0;
    if (CUresult error = BeginFree(pointer, 0, &ticket, &imported); error != CUDA_SUCCESS) return error;
    FinishFree(imported, ticket);
    return CUDA_SUCCESS;
  }
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(pointer);
  if (it == ranges_.end()) return CUDA_ERROR_INVALID_VALUE;  // another thread was faster
  FreeLocked(it);
  return CUDA_SUCCESS;
}

void Memory::FreeLocked(std::map<uint64_t, Range>::iterator it) {
  Range range = std::move(it->second);
  ranges_.erase(it);
  if (range.freed) freed_.fetch_sub(1, std::memory_order_relaxed);
  switch (range.kind) {
    case Range::Kind::kSmall: {
      const auto freed = range.context->slabs.Free(range.base);
      if (freed && freed->empty_slab) {
        GiveRegion(range.device, *freed->empty_slab, sim::kPageBytes);
      }
      break;
    }
    case Range::Kind::kPooled: {
      Pool* pool = range.pool;
      pool->layout.Free(range.base - pool->base);
      // As measured: USED_MEM_CURRENT does not come down for memory that is
      // freed this way.
      TrimLocked(pool, pool->threshold);
      MaybeDeletePool(pool);
      break;
    }
    case Range::Kind::kManaged: {
      const auto pages = static_cast<uint64_t>(std::count(range.touched.begin(), range.touched.end(), true));
      UnmapRegion(range.base, sim::RoundUp(range.size, sim::kPageBytes));
      if (pages > 0) Driver::Get().Change(*range.device, Op::kFreeManaged, pages * sim::kPageBytes);
      if (range.taken > 0) Driver::Get().Change(*range.device, Op::kReleaseManaged, range.taken);
      break;
    }
    case Range::Kind::kPlain:
    case Range::Kind::kGlobal:
      GiveRegion(range.device, range.base, range.taken);
      break;
    case Range::Kind::kMapped:
    case Range::Kind::kGraph:
    case Range::Kind::kImported:
    case Range::Kind::kHost:
    case Range::Kind::kRegistered:
      break;
  }
}

CUresult Memory::AllocGlobals(Context* context, uint64_t bytes, uint64_t* base) {
  if (bytes > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::unique_lock lock(mutex_);
  Range range;
  range.kind = Range::Kind::kGlobal;
  range.size = bytes;
  range.context = context;
  range.device = context->device;
  range.id = next_id_++;
  range.taken = sim::RoundGlobals(bytes);
  if (!TakeOrReclaim(range.device, range.taken, lock)) return CUDA_ERROR_OUT_OF_MEMORY;
  range.base = MapRegion(range.taken, sim::kPageBytes, false);
  if (range.base == 0) {
    Give(range.device, range.taken);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *base = range.base;
  ranges_.emplace(range.base, std::move(range));
  return CUDA_SUCCESS;
}

void Memory::FreeGlobals(uint64_t base) {
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(base);
  if (it != ranges_.end() && it->second.kind == Range::Kind::kGlobal) FreeLocked(it);
}

Range* Memory::FindLocked(uint64_t address) {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return nullptr;
  --it;
  return address - it->second.base < std::max<uint64_t>(it->second.size, 1) ? &it->second : nullptr;
}

std::optional<Range> Memory::Find(uint64_t address) {
  std::optional<Range> found;
  {
    std::lock_guard lock(mutex_);
    if (const Range* range = FindLocked(address)) found = *range;
  }
  if (found && found->kind == Range::Kind::kGraph) {
    // Of an extent programs see the pieces.
    if (const auto piece = GraphMemory::Get().PieceAt(address)) {
      found->base = piece->address;
      found->size = piece->bytes;
    }
  }
  return found;
}

bool Memory::IsDevice(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  // Neighbouring mappings of a reservation may be used as one.
  while (true) {
    const Range* range = FindLocked(address);
    if (range == nullptr || range->kind == Range::Kind::kRegistered) return false;
    const uint64_t rest = range->base + range->size - address;
    if (bytes <= rest) return true;
    if (range->kind != Range::Kind::kMapped) return false;
    address += rest;
    bytes -= rest;
  }
}

bool Memory::Usable(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  while (bytes > 0) {
    const Range* range = FindLocked(address);
    if (range == nullptr) {
      // Not ours, unless it is a reservation with nothing behind it.
      auto it = reservations_.upper_bound(address);
      if (it != reservations_.begin() && address - std::prev(it)->first < std::prev(it)->second) return false;
      return true;
    }
    if (range->kind == Range::Kind::kMapped && range->access == CU_MEM_ACCESS_FLAGS_PROT_NONE) return false;
    const uint64_t rest = range->base + range->size - address;
    if (bytes <= rest) return true;
    if (range->kind != Range::Kind::kMapped) return range->kind == Range::Kind::kRegistered;
    address += rest;
    bytes -= rest;
  }
  return true;
}

void Memory::RemoveContext(Context* context) {
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    auto next = std::next(it);
    const Range& range = it->second;
    // Mappings belong to the process, as do stream-ordered allocations of
    // pools, unless the primary context that carries the pools goes.
    const bool ours = range.context == context && range.kind != Range::Kind::kMapped &&
                      range.kind != Range::Kind::kImported && range.kind != Range::Kind::kRegistered &&
                      (range.kind != Range::Kind::kPooled || context->primary);
    if (ours) {
      if (range.kind == Range::Kind::kHost) {
        UnmapRegion(range.base, sim::RoundUp(range.size, 4096));
        ranges_.erase(it);
      } else {
        FreeLocked(it);
      }
    }
    it = next;
  }
  if (context->primary) {
    for (Pool* pool : pools_) {
      if (pool->device == context->device) TrimLocked(pool, 0);
    }
  }
}

}  // namespace gpumux::softgpu
