// SPDX-License-Identifier: Apache-2.0
//
// Managed memory: it counts for the device, not for the process, and only once
// the device has used it, in pages of 2 MiB.
#include <algorithm>

#include "sim/slab_layout.h"
#include "softgpu/driver/address_space.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

CUresult Memory::AllocManaged(Context* context, uint64_t bytes, unsigned flags, CUdeviceptr* out) {
  if (out == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Range range;
  range.kind = Range::Kind::kManaged;
  range.size = bytes;
  range.context = context;
  range.device = context->device;
  range.flags = flags;
  const uint64_t mapped = sim::RoundUp(bytes, sim::kPageBytes);
  range.touched.resize(mapped / sim::kPageBytes);
  Driver& driver = Driver::Get();
  if (range.device->limited) {
    if (driver.Change(*range.device, Op::kReserveManaged, mapped) != Answer::kOk)
      return CUDA_ERROR_OUT_OF_MEMORY;
    range.taken = mapped;
  }
  range.base = MapRegion(mapped, sim::kPageBytes, false);
  if (range.base == 0) {
    if (range.taken > 0) driver.Change(*range.device, Op::kReleaseManaged, range.taken);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::lock_guard lock(mutex_);
  range.id = next_id_++;
  *out = range.base;
  ranges_.emplace(range.base, std::move(range));
  return CUDA_SUCCESS;
}

bool Memory::Touch(uint64_t address, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  Range* range = FindLocked(address);
  if (range == nullptr || range->kind != Range::Kind::kManaged || bytes == 0) return true;
  const uint64_t first = (address - range->base) / sim::kPageBytes;
  const uint64_t last =
      std::min((address - range->base + bytes - 1) / sim::kPageBytes, range->touched.size() - 1);
  uint64_t fresh = 0;
  for (uint64_t page = first; page <= last; ++page) fresh += range->touched[page] ? 0 : 1;
  if (fresh == 0) return true;
  if (Driver::Get().Change(*range->device, Op::kTouchManaged, fresh * sim::kPageBytes) != Answer::kOk) {
    // Managed memory may be larger than the device: pages stay on the host.
    return false;
  }
  for (uint64_t page = first; page <= last; ++page) range->touched[page] = true;
  return true;
}

}  // namespace gpumux::softgpu
