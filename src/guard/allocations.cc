// SPDX-License-Identifier: Apache-2.0
#include "guard/allocations.h"

#include "guard/driver_objects.h"
#include "guard/graphs.h"
#include "guard/limits.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/small_objects.h"
#include "guard/streams.h"
#include "guard/virtual_memory.h"

namespace gpumux::guard {

namespace {

struct Slab {
  uint64_t pieces;
  cuda::CUcontext context;
  int slot;
};

constinit Lock g_lock;
constinit KeyMap<Allocation> g_allocations;
constinit KeyMap<Slab> g_slabs;

uint64_t SlabKey(cuda::CUdeviceptr ptr) { return ptr / kSlabBytes; }

}  // namespace

void Remember(cuda::CUdeviceptr ptr, const Allocation& allocation) {
  if (ptr == 0) return;
  Held held(g_lock);
  Allocation* entry = g_allocations.Insert(ptr, allocation);
  if (entry) *entry = allocation;
}

bool Take(cuda::CUdeviceptr ptr, Allocation* allocation) {
  Held held(g_lock);
  return g_allocations.Erase(ptr, allocation);
}

bool AddPiece(cuda::CUdeviceptr ptr, cuda::CUcontext context, int slot) {
  Held held(g_lock);
  Slab* slab = g_slabs.Insert(SlabKey(ptr), Slab{0, context, slot});
  return slab == nullptr || slab->pieces++ == 0;
}

bool HasSlab(cuda::CUcontext context, int slot) {
  Held held(g_lock);
  return g_slabs.Any([&](const Slab& slab) { return slab.context == context && slab.slot == slot; });
}

bool DropPiece(cuda::CUdeviceptr ptr) {
  Held held(g_lock);
  Slab* slab = g_slabs.Find(SlabKey(ptr));
  if (!slab || --slab->pieces != 0) return false;
  g_slabs.Erase(SlabKey(ptr), nullptr);
  return true;
}

uint64_t DropContext(cuda::CUcontext context, int slot, bool last) {
  // Also what was made when the driver did not say in which context.
  const auto in_it = [&](cuda::CUcontext c, int s) { return s == slot && (c == context || (last && !c)); };
  uint64_t bytes = 0, small_objects = 0;
  Held held(g_lock);
  g_allocations.EraseIf([&](uint64_t, Allocation& a) {
    if (a.family == Family::kStream || !in_it(a.context, a.slot)) return false;
    bytes += a.bytes;
    small_objects += a.family == Family::kSmallObject;
    return true;
  });
  g_slabs.EraseIf([&](uint64_t, Slab& s) {
    if (!in_it(s.context, s.slot)) return false;
    bytes += kSlabBytes;
    return true;
  });
  return bytes + g_small_objects.Drop(slot, small_objects);
}

void ForgetAllAllocations() {
  g_lock.Reset();
  g_allocations.Forget();
  g_slabs.Forget();
  ForgetContexts();
  ForgetGraphs();
  ForgetLimits();
  ForgetObjects();
  g_small_objects.Forget();
  ForgetPools();
  ForgetVirtualMemory();
}

}  // namespace gpumux::guard
