// SPDX-License-Identifier: Apache-2.0
//
// Memory that other processes use: what has to become a file for it becomes one
// when it is first asked for; the server keeps the books (server/shares.h) and
// hands the files out.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "sim/slab_layout.h"
#include "softgpu/driver/address_space.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// What is in the 64 bytes that programs pass on.
struct Token {
  uint64_t magic;
  uint64_t key;
  uint64_t offset;
  uint64_t size;
  uint64_t client;
  uint64_t unused[3];
};
static_assert(sizeof(Token) == 64);
constexpr uint64_t kIpcMemory = 0x67706d75782d6d31;
constexpr uint64_t kPoolPointer = 0x67706d75782d7031;

void WriteToken(void* out, uint64_t magic, uint64_t key, uint64_t offset, uint64_t size) {
  const Token token = {magic, key, offset, size, Driver::Get().client(), {}};
  memcpy(out, &token, sizeof(token));
}
bool ReadToken(const void* in, uint64_t magic, Token* token) {
  memcpy(token, in, sizeof(*token));
  return token->magic == magic && token->size <= sim::kMaxAllocationBytes &&
         token->offset <= sim::kMaxAllocationBytes;
}

// Writes what the region has in it to the file: pages that were never touched
// read as zero there as well, and would only be made by being looked at.
bool CopyTouchedPages(uint64_t base, uint64_t bytes, int file) {
  constexpr uint64_t kPage = 4096;
  constexpr uint64_t kPresent = 1ULL << 63, kSwapped = 1ULL << 62;
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  uint64_t entries[512];
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t pages = std::min<uint64_t>(std::size(entries), (bytes - at) / kPage);
    const auto size = static_cast<ssize_t>(pages * sizeof(uint64_t));
    if (map < 0 || pread(map, entries, static_cast<size_t>(size),
                         static_cast<off_t>((base + at) / kPage * sizeof(uint64_t))) != size) {
      std::fill_n(entries, pages, kPresent);  // then all of them
    }
    for (uint64_t page = 0; page < pages; ++page, at += kPage) {
      if ((entries[page] & (kPresent | kSwapped)) == 0) continue;
      if (pwrite(file, reinterpret_cast<const void*>(base + at), kPage, static_cast<off_t>(at)) !=
          static_cast<ssize_t>(kPage)) {
        if (map >= 0) close(map);
        return false;
      }
    }
  }
  if (map >= 0) close(map);
  return true;
}

}  // namespace

bool Memory::ShareRegion(Device* device, uint64_t base, uint64_t bytes) {
  if (shared_.contains(base)) return true;
  const int file = memfd_create("gpumux-softgpu", MFD_CLOEXEC);
  if (file < 0) return false;
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0 || !CopyTouchedPages(base, bytes, file)) {
    close(file);
    return false;
  }
  const auto reply = Driver::Get().AskShare(Op::kShare, device, bytes, 0, file);
  if (!reply) {
    close(file);
    return false;
  }
  void* at = mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) {
    close(file);
    Driver::Get().AskShare(Op::kUnshare, device, 0, reply->values[0]);
    return false;
  }
  madvise(at, bytes, MADV_DONTFORK);
  shared_.emplace(base, SharedRegion{reply->values[0], file});
  for (auto it = ranges_.lower_bound(base); it != ranges_.end() && it->first < base + bytes; ++it) {
    it->second.file_backed = true;
  }
  return true;
}

void Memory::GiveRegion(Device* device, uint64_t base, uint64_t bytes) {
  UnmapRegion(base, bytes);
  auto it = shared_.find(base);
  if (it == shared_.end()) {
    Give(device, bytes);
    return;
  }
  close(it->second.file);
  Driver::Get().AskShare(Op::kUnshare, device, 0, it->second.key);
  shared_.erase(it);
}

CUresult Memory::GetIpcHandle(uint64_t pointer, void* handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  const Range* range = FindLocked(pointer);
  if (range == nullptr || (range->kind != Range::Kind::kSmall && range->kind != Range::Kind::kPlain)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A piece of a slab shares its slab.
  const bool small = range->kind == Range::Kind::kSmall;
  const uint64_t base = small ? range->base / sim::kPageBytes * sim::kPageBytes : range->base;
  const uint64_t bytes = small ? sim::kPageBytes : range->taken;
  if (!ShareRegion(range->device, base, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  WriteToken(handle, kIpcMemory, shared_.at(base).key, range->base - base, range->size);
  return CUDA_SUCCESS;
}

CUresult Memory::OpenIpcHandle(Context* context, const void* handle, CUdeviceptr* out) {
  Token token;
  if (out == nullptr || !ReadToken(handle, kIpcMemory, &token)) return CUDA_ERROR_INVALID_VALUE;
  // A process cannot open what is its own.
  if (token.client == Driver::Get().client()) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(mutex_);
  auto import = imports_.find(token.key);
  if (import == imports_.end()) {
    int file = -1;
    const auto reply = Driver::Get().AskShare(Op::kAttach, nullptr, 0, token.key, -1, &file);
    if (!reply) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t base = file >= 0 && Driver::Get().FindDeviceOfGpu(reply->values[2]) == context->device
                              ? MapShared(file, reply->values[1], sim::kPageBytes)
                              : 0;
    if (file >= 0) close(file);
    if (base == 0) {
      Driver::Get().AskShare(Op::kDetach, nullptr, 0, token.key);
      return CUDA_ERROR_MAP_FAILED;
    }
    import = imports_.emplace(token.key, Import{base, reply->values[1], 0}).first;
  }
  if (token.offset + token.size > import->second.bytes) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t address = import->second.base + token.offset;
  ++import->second.opens;
  auto& open = import_opens_[address];
  open.first = token.key;
  if (++open.second == 1) {
    Range range;
    range.kind = Range::Kind::kImported;
    range.base = address;
    range.size = token.size;
    range.context = context;
    range.device = context->device;
    range.id = next_id_++;
    ranges_.emplace(address, std::move(range));
  }
  *out = address;
  return CUDA_SUCCESS;
}

CUresult Memory::CloseIpcHandle(uint64_t pointer) {
  std::unique_lock unmapping(mapping_mutex_);
  std::lock_guard lock(mutex_);
  auto open = import_opens_.find(pointer);
  if (open == import_opens_.end()) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t key = open->second.first;
  if (--open->second.second == 0) {
    ranges_.erase(pointer);
    import_opens_.erase(open);
  }
  auto import = imports_.find(key);
  if (--import->second.opens > 0) return CUDA_SUCCESS;
  UnmapRegion(import->second.base, import->second.bytes);
  imports_.erase(import);
  Driver::Get().AskShare(Op::kDetach, nullptr, 0, key);
  return CUDA_SUCCESS;
}

CUresult Memory::ExportHandle(CUmemGenericAllocationHandle handle, int* out) {
  std::lock_guard lock(mutex_);
  auto it = physical_.find(handle);
  if (it == physical_.end() || it->second.file < 0 || it->second.device == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  Physical& physical = it->second;
  if (physical.imported) return CUDA_ERROR_NOT_SUPPORTED;
  if (physical.key == 0) {
    const auto reply = Driver::Get().AskShare(Op::kShare, physical.device, physical.bytes, 0, physical.file);
    if (!reply) return CUDA_ERROR_OUT_OF_MEMORY;
    physical.key = reply->values[0];
  }
  *out = -1;
  Driver::Get().AskShare(Op::kExport, physical.device, 0, physical.key, -1, out);
  return *out >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult Memory::ImportHandle(int descriptor, CUmemGenericAllocationHandle* out) {
  if (out == nullptr || descriptor < 0 || fcntl(descriptor, F_GETFD) < 0) return CUDA_ERROR_INVALID_VALUE;
  int file = -1;
  const auto reply = Driver::Get().AskShare(Op::kAttachFile, nullptr, 0, 0, descriptor, &file);
  if (!reply || file < 0) return CUDA_ERROR_INVALID_VALUE;
  Device* device = Driver::Get().FindDeviceOfGpu(reply->values[2]);
  if (device == nullptr || reply->values[1] == 0) {
    close(file);
    Driver::Get().AskShare(Op::kDetach, nullptr, 0, reply->values[0]);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
  std::lock_guard lock(mutex_);
  *out = next_handle_;
  next_handle_ += 0x10;
  physical_.emplace(*out, Physical{prop, device, reply->values[1], 0, 1, 0, file, reply->values[0], true});
  return CUDA_SUCCESS;
}

bool Memory::TakeForPool(Pool* pool, uint64_t bytes) {
  if (pool->key == 0) return Take(pool->device, bytes);
  return bytes <= sim::kMaxAllocationBytes &&
         Driver::Get().AskShare(Op::kTakeShared, pool->device, bytes, pool->key).has_value();
}

void Memory::GiveOfPool(Pool* pool, uint64_t bytes) {
  if (bytes == 0) return;
  if (pool->key == 0) {
    Give(pool->device, bytes);
  } else {
    Driver::Get().AskShare(Op::kGiveShared, pool->device, bytes, pool->key);
  }
}

CUresult Memory::ExportPool(Pool* pool, int* out) {
  std::lock_guard lock(mutex_);
  if (pool->file < 0 || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  if (pool->key == 0) {
    const auto reply =
        Driver::Get().AskShare(Op::kShare, pool->device, pool->layout.reserved(), 0, pool->file);
    if (!reply) return CUDA_ERROR_OUT_OF_MEMORY;
    pool->key = reply->values[0];
  }
  *out = -1;
  Driver::Get().AskShare(Op::kExport, pool->device, 0, pool->key, -1, out);
  return *out >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult Memory::ImportPool(int descriptor, Pool** out) {
  if (descriptor < 0 || fcntl(descriptor, F_GETFD) < 0) return CUDA_ERROR_INVALID_VALUE;
  int file = -1;
  const auto reply = Driver::Get().AskShare(Op::kAttachFile, nullptr, 0, 0, descriptor, &file);
  if (!reply || file < 0) return CUDA_ERROR_INVALID_VALUE;
  Device* device = Driver::Get().FindDeviceOfGpu(reply->values[2]);
  const uint64_t base = device != nullptr ? MapShared(file, Pool::kRangeBytes, sim::kPoolChunkBytes) : 0;
  if (base == 0) {
    close(file);
    Driver::Get().AskShare(Op::kDetach, nullptr, 0, reply->values[0]);
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto* pool = new Pool;
  pool->device = device;
  pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  pool->props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device->ordinal};
  pool->file = file;
  pool->key = reply->values[0];
  pool->imported = true;
  pool->base = base;
  std::lock_guard lock(mutex_);
  pools_.insert(pool);
  *out = pool;
  return CUDA_SUCCESS;
}

CUresult Memory::ExportPointer(uint64_t pointer, void* data) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto it = ranges_.find(pointer);
  if (it == ranges_.end() || it->second.kind != Range::Kind::kPooled || it->second.pool->key == 0 ||
      it->second.pool->imported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  WriteToken(data, kPoolPointer, it->second.pool->key, pointer - it->second.pool->base, it->second.size);
  return CUDA_SUCCESS;
}

CUresult Memory::ImportPointer(Pool* pool, const void* data, CUdeviceptr* out) {
  Token token;
  if (out == nullptr || data == nullptr || !ReadToken(data, kPoolPointer, &token))
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  if (!pool->imported || pool->key != token.key || token.offset + token.size > Pool::kRangeBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t address = pool->base + token.offset;
  if (++pool->opens[address] == 1) {
    Range range;
    range.kind = Range::Kind::kPooled;
    range.base = address;
    range.size = token.size;
    range.device = pool->device;
    range.pool = pool;
    range.file_backed = true;
    range.id = next_id_++;
    ranges_.emplace(address, std::move(range));
    ++pool->imported_live;
  }
  *out = address;
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
