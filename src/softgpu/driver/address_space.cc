// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/address_space.h"

#include <sys/mman.h>

namespace gpumux::softgpu {

uint64_t MapRegion(uint64_t bytes, uint64_t alignment, bool reserve_only, uint64_t hint) {
  const uint64_t span = bytes + alignment;
  if (span < bytes) return 0;
  const int protection = reserve_only ? PROT_NONE : PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint != 0 && hint % alignment == 0) {
    void* at = mmap(reinterpret_cast<void*>(hint), bytes, protection, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == reinterpret_cast<void*>(hint)) return hint;
    if (at != MAP_FAILED) munmap(at, bytes);
  }
  void* start = mmap(nullptr, span, protection, kFlags, -1, 0);
  if (start == MAP_FAILED) return 0;
  const uint64_t begin = reinterpret_cast<uint64_t>(start);
  const uint64_t base = (begin + alignment - 1) & ~(alignment - 1);
  if (base > begin) munmap(start, base - begin);
  if (base + bytes < begin + span) munmap(reinterpret_cast<void*>(base + bytes), begin + span - base - bytes);
  // A child that is forked must not inherit what could be hundreds of
  // gigabytes of page tables; the driver's memory is not there either.
  madvise(reinterpret_cast<void*>(base), bytes, MADV_DONTFORK);
  return base;
}

uint64_t MapShared(int file, uint64_t bytes, uint64_t alignment) {
  const uint64_t base = MapRegion(bytes, alignment, true);
  if (base == 0) return 0;
  void* at = mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  if (at == MAP_FAILED) {
    munmap(reinterpret_cast<void*>(base), bytes);
    return 0;
  }
  madvise(at, bytes, MADV_DONTFORK);
  return base;
}

void UnmapRegion(uint64_t base, uint64_t bytes) { munmap(reinterpret_cast<void*>(base), bytes); }

void ForgetContents(uint64_t base, uint64_t bytes) {
  madvise(reinterpret_cast<void*>(base), bytes, MADV_DONTNEED);
}

}  // namespace gpumux::softgpu
