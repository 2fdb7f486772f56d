// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management. The device gives memory at cuMemCreate and takes
// it back when the last handle is released and the last mapping is gone; maps
// and addresses cost nothing. A handle is charged accordingly:
//
//            references (create, retain, import)      mappings
//   create          1                                    0        + size
//   map             1                                    1
//   release         0                                    1        (still there)
//   unmap           0                                    0        - size
//
// Parts of arrays and multicast objects count as mappings (handle_users.cc).
// Handles that were imported from another process are charged to their owner.
#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/descriptors.h"
#include "guard/driver.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/virtual_memory.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Physical {
  uint64_t bytes;  // charged; 0 for an import
  uint32_t references;
  uint32_t mappings;
  int slot;
};

struct Mapping {
  uint64_t bytes;
  CUmemGenericAllocationHandle handle;
};

constinit Lock g_lock;  // held across the driver's calls: a handle's value may be reused at once
constinit KeyMap<Physical> g_handles;
constinit KeyMap<Mapping> g_mappings;

// Under g_lock.
void EndIfUnused(CUmemGenericAllocationHandle handle, const Physical& physical) {
  if (physical.references != 0 || physical.mappings != 0) return;
  if (physical.bytes) Release(physical.slot, physical.bytes);
  g_handles.Erase(handle, nullptr);
  HandleUsesNothing(handle);
}

}  // namespace

Lock& HandlesLock() { return g_lock; }

bool AddHandleUser(CUmemGenericAllocationHandle handle) {
  Physical* physical = g_handles.Find(handle);
  if (physical) physical->mappings++;
  return physical != nullptr;
}

void RemoveHandleUser(CUmemGenericAllocationHandle handle) {
  Physical* physical = g_handles.Find(handle);
  if (!physical || physical->mappings == 0) return;
  physical->mappings--;
  EndIfUnused(handle, *physical);
}

void AddBareHandle(CUmemGenericAllocationHandle handle) { g_handles.Insert(handle, Physical{0, 1, 0, 0}); }

CUmemGenericAllocationHandle HandleMappedAt(uint64_t address) {
  const Mapping* mapping = g_mappings.Find(address);
  return mapping ? mapping->handle : 0;
}

int SlotOfHandle(CUmemGenericAllocationHandle handle) {
  const Physical* physical = g_handles.Find(handle);
  return physical ? physical->slot : kNoDevice;
}

void ForgetVirtualMemory() {
  ForgetHandleUsers();
  g_lock.Reset();
  g_handles.Forget();
  g_mappings.Forget();
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  auto call = [&] { return Through(Real().cuMemCreate, handle, bytes, prop, flags); };
  if (!InForce() || !handle || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || bytes == 0 ||
      bytes >= kAbsurdBytes) {
    return call();
  }
  const int slot = SlotOfDevice(prop->location.id);
  if (slot == kNoDevice) return call();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  {
    Held held(g_lock);
    LookAfterDescriptors();
  }
  // The driver takes multiples of its granularity only; what it would refuse
  // for that reason is not ours to refuse first.
  if (bytes % kDevicePageBytes != 0) {
    Held held(g_lock);
    const CUresult r = call();
    if (r == CUDA_SUCCESS) {
      const uint64_t charge = RoundUp(bytes, kDevicePageBytes);
      ForceCommit(slot, charge);
      g_handles.Insert(*handle, Physical{charge, 1, 0, slot});
    }
    return r;
  }
  if (!Reserve(slot, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Held held(g_lock);
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    Cancel(slot, bytes);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(slot, bytes);
    return r;
  }
  Commit(slot, bytes);
  g_handles.Insert(*handle, Physical{bytes, 1, 0, slot});
  return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto call = [&] { return Through(Real().cuMemRelease, handle); };
  if (!InForce()) return call();
  Held held(g_lock);
  const CUresult r = call();
  Physical* physical = r == CUDA_SUCCESS ? g_handles.Find(handle) : nullptr;
  if (physical && physical->references > 0) {
    physical->references--;
    EndIfUnused(handle, *physical);
  }
  LookAfterDescriptors();
  return r;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  auto call = [&] { return Through(Real().cuMemMap, ptr, bytes, offset, handle, flags); };
  if (!InForce()) return call();
  Held held(g_lock);
  const CUresult r = call();
  Physical* physical = r == CUDA_SUCCESS ? g_handles.Find(handle) : nullptr;
  if (physical && g_mappings.Insert(ptr, Mapping{bytes, handle})) physical->mappings++;
  return r;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes) {
  auto call = [&] { return Through(Real().cuMemUnmap, ptr, bytes); };
  if (!InForce()) return call();
  Held held(g_lock);
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  // One call may end several mappings that lie side by side; addresses without
  // one (not ours) are stepped over by the granularity.
  for (uint64_t at = ptr; at < ptr + bytes;) {
    Mapping mapping;
    if (!g_mappings.Erase(at, &mapping)) {
      at += kDevicePageBytes;
      continue;
    }
    at += mapping.bytes ? mapping.bytes : kDevicePageBytes;
    Physical* physical = g_handles.Find(mapping.handle);
    if (physical && physical->mappings > 0) {
      physical->mappings--;
      EndIfUnused(mapping.handle, *physical);
    }
  }
  return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  auto call = [&] { return Through(Real().cuMemRetainAllocationHandle, handle, address); };
  if (!InForce() || !handle) return call();
  Held held(g_lock);
  const CUresult r = call();
  if (r == CUDA_SUCCESS) {
    if (Physical* physical = g_handles.Find(*handle)) physical->references++;
  }
  return r;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
  auto call = [&] { return Through(Real().cuMemImportFromShareableHandle, handle, os_handle, type); };
  if (!InForce() || !handle) return call();
  const LookAfter look;
  Held held(g_lock);
  const CUresult r = call();
  if (r == CUDA_SUCCESS) {
    if (Physical* physical = g_handles.Insert(*handle, Physical{0, 0, 0, 0})) physical->references++;
  }
  return r;
}

}  // extern "C"
