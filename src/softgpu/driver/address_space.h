// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gpumux::softgpu {

// Device addresses are addresses of this process. Memory behind them is the
// host's, appears when touched (MAP_NORESERVE), and is private to the process.

// A region aligned to `alignment` (a power of two, at least a page), readable
// and writable unless `reserve_only`; at `hint` if that is free. 0: no room.
uint64_t MapRegion(uint64_t bytes, uint64_t alignment, bool reserve_only, uint64_t hint = 0);
// The same of a file that several processes map.
uint64_t MapShared(int file, uint64_t bytes, uint64_t alignment);
void UnmapRegion(uint64_t base, uint64_t bytes);
// The contents are gone and the host has its memory back; the region stays.
void ForgetContents(uint64_t base, uint64_t bytes);

}  // namespace gpumux::softgpu
