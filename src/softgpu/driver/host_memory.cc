// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "sim/slab_layout.h"
#include "softgpu/driver/address_space.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {
constexpr uint64_t kHostPage = 4096;
}

CUresult Memory::AllocHost(Context* context, uint64_t bytes, unsigned flags, void** out) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Range range;
  range.kind = Range::Kind::kHost;
  range.size = bytes;
  range.context = context;
  range.device = context->device;
  range.flags = flags;
  range.base = MapRegion(sim::RoundUp(bytes, kHostPage), kHostPage, false);
  if (range.base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(mutex_);
  range.id = next_id_++;
  *out = reinterpret_cast<void*>(range.base);
  ranges_.emplace(range.base, std::move(range));
  return CUDA_SUCCESS;
}

CUresult Memory::FreeHost(void* pointer) {
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(reinterpret_cast<uint64_t>(pointer));
  if (it == ranges_.end() || it->second.kind != Range::Kind::kHost) return CUDA_ERROR_INVALID_VALUE;
  UnmapRegion(it->second.base, sim::RoundUp(it->second.size, kHostPage));
  ranges_.erase(it);
  return CUDA_SUCCESS;
}

CUresult Memory::Register(Context* context, void* pointer, uint64_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t base = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard lock(mutex_);
  auto next = ranges_.lower_bound(base);
  if (FindLocked(base) != nullptr || (next != ranges_.end() && next->first < base + bytes)) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  Range range;
  range.kind = Range::Kind::kRegistered;
  range.base = base;
  range.size = bytes;
  range.context = context;
  range.device = context->device;
  range.flags = flags;
  range.id = next_id_++;
  ranges_.emplace(base, std::move(range));
  return CUDA_SUCCESS;
}

CUresult Memory::Unregister(void* pointer) {
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(reinterpret_cast<uint64_t>(pointer));
  if (it == ranges_.end() || it->second.kind != Range::Kind::kRegistered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  ranges_.erase(it);
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
