// SPDX-License-Identifier: Apache-2.0
//
// Handles, reservations and mappings. Handles are parts of one file in memory,
// so that a handle that is mapped twice shows the same bytes twice, and so that
// thousands of handles need one descriptor.
#include <fcntl.h>
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

CUresult Memory::CreateHandle(const CUmemAllocationProp& prop, uint64_t bytes,
                              CUmemGenericAllocationHandle* out) {
  if (out == nullptr || bytes == 0 || bytes % sim::kPageBytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if ((prop.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return CUDA_ERROR_NOT_SUPPORTED;
  Device* device = nullptr;
  switch (prop.location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      device = Driver::Get().FindDevice(prop.location.id);
      if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  std::unique_lock lock(mutex_);
  if (prop.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    // What can be exported is a file of its own.
    const int file = memfd_create("gpumux-softgpu", MFD_CLOEXEC);
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (ftruncate(file, static_cast<off_t>(bytes)) != 0 ||
        (device != nullptr && !TakeOrReclaim(device, bytes, lock))) {
      close(file);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = next_handle_;
    next_handle_ += 0x10;
    physical_.emplace(*out, Physical{prop, device, bytes, 0, 1, 0, file});
    return CUDA_SUCCESS;
  }
  if (file_ < 0) {
    file_ = memfd_create("gpumux-softgpu", MFD_CLOEXEC);
    if (file_ < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (device != nullptr && !TakeOrReclaim(device, bytes, lock)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto hole =
      std::find_if(file_holes_.begin(), file_holes_.end(), [&](const auto& h) { return h.second >= bytes; });
  uint64_t offset;
  if (hole != file_holes_.end()) {
    offset = hole->first;
    const uint64_t rest = hole->second - bytes;
    file_holes_.erase(hole);
    if (rest > 0) file_holes_.emplace(offset + bytes, rest);
  } else {
    offset = file_end_;
    if (ftruncate(file_, static_cast<off_t>(file_end_ + bytes)) != 0) {
      Give(device, bytes);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    file_end_ += bytes;
  }
  const CUmemGenericAllocationHandle handle = next_handle_;
  next_handle_ += 0x10;
  physical_.emplace(handle, Physical{prop, device, bytes, offset, 1, 0});
  *out = handle;
  return CUDA_SUCCESS;
}

void Memory::ReleasePhysical(std::map<uint64_t, Physical>::iterator it) {
  Physical& physical = it->second;
  if (physical.references > 0 || physical.mappings > 0) return;
  if (physical.file >= 0) {
    close(physical.file);
    if (physical.key != 0) {
      Driver::Get().AskShare(physical.imported ? Op::kDetach : Op::kUnshare, physical.device, 0,
                             physical.key);
    } else if (physical.device != nullptr) {
      Give(physical.device, physical.bytes);
    }
    physical_.erase(it);
    return;
  }
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(physical.file_offset),
            static_cast<off_t>(physical.bytes));
  uint64_t offset = physical.file_offset, size = physical.bytes;
  auto after = file_holes_.lower_bound(offset);
  if (after != file_holes_.end() && after->first == offset + size) {
    size += after->second;
    after = file_holes_.erase(after);
  }
  if (after != file_holes_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      file_holes_.erase(before);
    }
  }
  file_holes_.emplace(offset, size);
  if (physical.device != nullptr) Give(physical.device, physical.bytes);
  physical_.erase(it);
}

CUresult Memory::ReleaseHandle(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  auto it = physical_.find(handle);
  if (it == physical_.end() || it->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
  --it->second.references;
  ReleasePhysical(it);
  return CUDA_SUCCESS;
}

CUresult Memory::RetainHandle(uint64_t address, CUmemGenericAllocationHandle* out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  Range* range = FindLocked(address);
  if (range == nullptr || range->kind != Range::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  ++physical_.at(range->handle).references;
  *out = range->handle;
  return CUDA_SUCCESS;
}

CUresult Memory::HandleProperties(CUmemGenericAllocationHandle handle, CUmemAllocationProp* prop) {
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto it = physical_.find(handle);
  if (it == physical_.end()) return CUDA_ERROR_INVALID_VALUE;
  *prop = it->second.prop;
  return CUDA_SUCCESS;
}

CUresult Memory::Reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr* out) {
  if (out == nullptr || bytes == 0 || bytes % sim::kPageBytes != 0 || (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes > sim::kMaxAllocationBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t base = MapRegion(bytes, std::max(alignment, sim::kPageBytes), true, hint);
  if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(mutex_);
  reservations_.emplace(base, bytes);
  *out = base;
  return CUDA_SUCCESS;
}

CUresult Memory::FreeReservation(uint64_t base, uint64_t bytes) {
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  auto it = reservations_.find(base);
  if (it == reservations_.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = ranges_.lower_bound(base);
  if (mapped != ranges_.end() && mapped->first < base + bytes) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(it);
  UnmapRegion(base, bytes);
  return CUDA_SUCCESS;
}

CUresult Memory::Map(uint64_t address, uint64_t bytes, CUmemGenericAllocationHandle handle) {
  if (address % sim::kPageBytes != 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  auto physical = physical_.find(handle);
  if (physical == physical_.end() || physical->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
  --reservation;
  if (address - reservation->first > reservation->second ||
      bytes > reservation->second - (address - reservation->first)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto next = ranges_.lower_bound(address);
  if (next != ranges_.end() && next->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
  if (FindLocked(address) != nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                  physical->second.file >= 0 ? physical->second.file : file_,
                  static_cast<off_t>(physical->second.file_offset));
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  madvise(at, bytes, MADV_DONTFORK);
  ++physical->second.mappings;
  Range range;
  range.base = address;
  range.size = bytes;
  range.kind = Range::Kind::kMapped;
  range.context = CurrentOrNull();
  range.device = physical->second.device;
  range.handle = handle;
  range.id = next_id_++;
  ranges_.emplace(address, std::move(range));
  return CUDA_SUCCESS;
}

CUresult Memory::Unmap(uint64_t address, uint64_t bytes) {
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  // Whole mappings only, any number of neighbours.
  uint64_t end = address;
  for (auto it = ranges_.find(address); end < address + bytes; it = ranges_.find(end)) {
    if (it == ranges_.end() || it->second.kind != Range::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
    end += it->second.size;
  }
  if (end != address + bytes || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  (void)mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  for (auto it = ranges_.find(address); it != ranges_.end() && it->first < end;) {
    auto physical = physical_.find(it->second.handle);
    --physical->second.mappings;
    ReleasePhysical(physical);
    it = ranges_.erase(it);
  }
  return CUDA_SUCCESS;
}

CUresult Memory::SetAccess(uint64_t address, uint64_t bytes, unsigned flags) {
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  uint64_t end = address;
  for (auto it = ranges_.find(address); end < address + bytes; it = ranges_.find(end)) {
    if (it == ranges_.end() || it->second.kind != Range::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
    end += it->second.size;
  }
  if (end != address + bytes || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int protection = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                         : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                                     : PROT_NONE;
  if (mprotect(reinterpret_cast<void*>(address), bytes, protection) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  for (auto it = ranges_.find(address); it != ranges_.end() && it->first < end; ++it)
    it->second.access = flags;
  return CUDA_SUCCESS;
}

CUresult Memory::GetAccess(uint64_t address, unsigned long long* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  Range* range = FindLocked(address);
  if (range == nullptr || range->kind != Range::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  *flags = range->access;
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
