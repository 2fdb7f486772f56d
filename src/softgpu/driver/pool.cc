// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "sim/slab_layout.h"
#include "softgpu/driver/address_space.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

Pool* Memory::DefaultPool(Device* device) {
  std::lock_guard lock(mutex_);
  if (device->default_pool == nullptr) {
    auto* pool = new Pool;
    pool->device = device;
    pool->is_default = true;
    pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
    pools_.insert(pool);
    device->default_pool = pool;
    if (device->current_pool == nullptr) device->current_pool = pool;
  }
  return device->default_pool;
}

Pool* Memory::CurrentPool(Device* device) {
  Pool* fallback = DefaultPool(device);
  std::lock_guard lock(mutex_);
  return device->current_pool != nullptr ? device->current_pool : fallback;
}

CUresult Memory::SetCurrentPool(Device* device, Pool* pool) {
  if (pool->device != device) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  device->current_pool = pool;
  return CUDA_SUCCESS;
}

Pool* Memory::FindPool(CUmemoryPool handle) {
  std::lock_guard lock(mutex_);
  auto it = pools_.find(reinterpret_cast<Pool*>(handle));
  return it != pools_.end() && !(*it)->destroyed ? *it : nullptr;
}

CUresult Memory::CreatePool(const CUmemPoolProps& props, Pool** out) {
  if (props.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (props.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  if ((props.handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  Device* device = Driver::Get().FindDevice(props.location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int file = -1;
  if (props.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    file = memfd_create("gpumux-softgpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(Pool::kRangeBytes)) != 0) {
      if (file >= 0) close(file);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  auto* pool = new Pool;
  pool->device = device;
  pool->props = props;
  pool->file = file;
  std::lock_guard lock(mutex_);
  pools_.insert(pool);
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult Memory::DestroyPool(Pool* pool) {
  std::lock_guard lock(mutex_);
  if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  pool->destroyed = true;
  if (pool->device->current_pool == pool) pool->device->current_pool = pool->device->default_pool;
  TrimLocked(pool, 0);
  MaybeDeletePool(pool);
  return CUDA_SUCCESS;
}

void Memory::MaybeDeletePool(Pool* pool) {
  if (!pool->destroyed || pool->layout.live() > 0) return;
  TrimLocked(pool, 0);
  if (pool->imported_live > 0) return;
  if (pool->base != 0) UnmapRegion(pool->base, Pool::kRangeBytes);
  if (pool->file >= 0) close(pool->file);
  if (pool->key != 0) {
    Driver::Get().AskShare(pool->imported ? Op::kDetach : Op::kUnshare, pool->device, 0, pool->key);
  }
  pools_.erase(pool);
  delete pool;
}

void Memory::TrimLocked(Pool* pool, uint64_t keep) {
  uint64_t bytes = 0;
  for (uint64_t chunk : pool->layout.Trim(keep)) {
    const uint64_t at = pool->base + chunk * sim::kPoolChunkBytes;
    if (pool->file >= 0) {
      madvise(reinterpret_cast<void*>(at), sim::kPoolChunkBytes, MADV_REMOVE);
    } else {
      ForgetContents(at, sim::kPoolChunkBytes);
    }
    bytes += sim::kPoolChunkBytes;
  }
  GiveOfPool(pool, bytes);
}

uint64_t Memory::ReclaimPools(Device* device, const Pool* except) {
  uint64_t bytes = 0;
  for (Pool* pool : pools_) {
    if (pool->device != device || pool == except) continue;
    const uint64_t before = pool->layout.reserved();
    TrimLocked(pool, 0);
    bytes += before - pool->layout.reserved();
  }
  return bytes;
}

CUresult Memory::AllocFromPool(Pool* pool, Context* context, uint64_t stream_id, uint64_t bytes,
                               CUdeviceptr* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) {
    *out = 0;
    return CUDA_SUCCESS;
  }
  if (pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > Pool::kRangeBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  if (pool->props.maxSize != 0 && bytes > pool->props.maxSize) return CUDA_ERROR_OUT_OF_MEMORY;
  std::unique_lock lock(mutex_);
  if (pool->base == 0) {
    pool->base = pool->file >= 0 ? MapShared(pool->file, Pool::kRangeBytes, sim::kPoolChunkBytes)
                                 : MapRegion(Pool::kRangeBytes, sim::kPoolChunkBytes, false);
    if (pool->base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Range range;
  range.kind = Range::Kind::kPooled;
  range.size = bytes;
  range.context = context;
  range.device = pool->device;
  range.pool = pool;
  range.file_backed = pool->file >= 0;
  range.id = next_id_++;

  std::optional<uint64_t> offset;
  auto place = pool->layout.Find(bytes);
  if (!place || !place->new_chunks.empty()) {
    // Before the pool grows: what the same stream frees earlier in its order.
    for (auto it = pool->pending.begin(); it != pool->pending.end(); ++it) {
      if (it->second.stream != stream_id || !pool->layout.Resize(it->second.offset, bytes)) continue;
      offset = it->second.offset;
      pool->pending.erase(it);
      break;
    }
  }
  if (!offset) {
    if (!place) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t grow = place->new_chunks.size() * sim::kPoolChunkBytes;
    if (pool->props.maxSize != 0 &&
        pool->layout.reserved() + grow > sim::RoundUp(pool->props.maxSize, sim::kPoolChunkBytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (grow > 0 && !TakeForPool(pool, grow)) {
      ReclaimPools(pool->device, pool);
      if (!TakeForPool(pool, grow)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->layout.Commit(*place, bytes);
    offset = place->offset;
  }
  pool->used += bytes;
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->reserved_high = std::max(pool->reserved_high, pool->layout.reserved());
  range.base = pool->base + *offset;
  *out = range.base;
  ranges_.emplace(range.base, std::move(range));
  return CUDA_SUCCESS;
}

CUresult Memory::BeginFree(CUdeviceptr pointer, uint64_t stream_id, uint64_t* ticket, Pool** pool) {
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(pointer);
  if (it == ranges_.end() || it->second.kind != Range::Kind::kPooled) return CUDA_ERROR_INVALID_VALUE;
  *pool = it->second.pool;
  if ((*pool)->imported) {
    // A pointer that was imported more than once is closed as often.
    auto open = (*pool)->opens.find(pointer);
    *ticket = 0;
    if (--open->second > 0) return CUDA_SUCCESS;
    (*pool)->opens.erase(open);
    --(*pool)->imported_live;
    ranges_.erase(it);
    return CUDA_SUCCESS;
  }
  *ticket = next_ticket_++;
  (*pool)->used -= std::min((*pool)->used, it->second.size);
  (*pool)->pending.emplace(*ticket, Pool::Pending{pointer - (*pool)->base, stream_id});
  ranges_.erase(it);
  return CUDA_SUCCESS;
}

void Memory::FinishFree(Pool* pool, uint64_t ticket) {
  std::lock_guard lock(mutex_);
  if (!pools_.contains(pool)) return;
  auto it = pool->pending.find(ticket);
  if (it == pool->pending.end()) {  // a later allocation of the stream has it
    MaybeDeletePool(pool);
    return;
  }
  pool->layout.Free(it->second.offset);
  pool->pending.erase(it);
  MaybeDeletePool(pool);
}

CUresult Memory::TrimPool(Pool* pool, uint64_t keep) {
  std::lock_guard lock(mutex_);
  TrimLocked(pool, keep);
  return CUDA_SUCCESS;
}

CUresult Memory::FreeAtSynchronize(CUdeviceptr pointer) {
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(pointer);
  if (it == ranges_.end() || it->second.freed ||
      (it->second.kind != Range::Kind::kSmall && it->second.kind != Range::Kind::kPlain)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  it->second.freed = true;
  freed_.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

void Memory::FreeWaiting(Device* device) {
  if (freed_.load(std::memory_order_relaxed) == 0) return;
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    auto next = std::next(it);
    if (it->second.freed && it->second.device == device) FreeLocked(it);
    it = next;
  }
}

void Memory::OnSynchronize(Device* device) {
  FreeWaiting(device);
  std::lock_guard lock(mutex_);
  for (Pool* pool : pools_) {
    if (pool->device == device && pool->layout.reserved() > pool->threshold)
      TrimLocked(pool, pool->threshold);
  }
}

CUresult Memory::GetPoolAttribute(Pool* pool, int attribute, void* value) {
  std::lock_guard lock(mutex_);
  auto* number = static_cast<cuuint64_t*>(value);
  auto* flag = static_cast<int*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      *flag = pool->reuse_follow_event;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      *flag = pool->reuse_opportunistic;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *flag = pool->reuse_internal;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *number = pool->threshold;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *number = pool->layout.reserved();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      *number = pool->reserved_high;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *number = pool->used;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *number = pool->used_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Memory::SetPoolAttribute(Pool* pool, int attribute, const void* value) {
  std::lock_guard lock(mutex_);
  const auto number = [&] { return *static_cast<const cuuint64_t*>(value); };
  const auto flag = [&] { return *static_cast<const int*>(value) != 0 ? 1 : 0; };
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      pool->reuse_follow_event = flag();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      pool->reuse_opportunistic = flag();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse_internal = flag();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->threshold = number();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = pool->layout.reserved();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace gpumux::softgpu
