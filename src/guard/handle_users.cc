// SPDX-License-Identifier: Apache-2.0
//
// What keeps physical memory besides mappings at an address: parts of sparse and
// deferred arrays, bindings to multicast objects, and exported descriptors. A program may release the
// handle at once; the memory goes back when the part is unmapped or bound
// otherwise, or with the array or object. An unmapping happens in the order of its
// stream, and is taken for done when it is queued.
//
// Memory whose handle is released while a descriptor of it is open is in no
// process's NVML figure. It stays charged to the process that exported it until
// the descriptor is closed there, which is noticed at the next handle that is made
// or released. Copies of the descriptor elsewhere are their importer's.
#include <string.h>

#include "guard/allocations.h"
#include "guard/driver.h"
#include "guard/session.h"
#include "guard/virtual_memory.h"
#include "guard/wire.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Use {
  uint64_t user;  // array or multicast object
  uint64_t offset;
  CUmemGenericAllocationHandle handle;
  int slot;
};

constinit KeyMap<Use> g_uses;  // by place in the user
constinit uint32_t g_descriptors = 0;
constexpr uint64_t kDescriptor = 1;  // the user; offset: inode, slot: descriptor

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

// Never 0, which is no key.
uint64_t Key(uint64_t user, uint64_t a, uint64_t b) { return Mix(Mix(Mix(1, user), a), b) | 1; }

// Of an array's part. Where a part begins is enough, since parts do not overlap.
uint64_t KeyOf(uint64_t array, const CUarrayMapInfo& info) {
  unsigned words[8];
  static_assert(sizeof words == sizeof info.subresource);
  memcpy(words, info.subresource, sizeof words);
  if (info.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
    return Key(array, ~uint64_t{words[0]}, info.subresource[1]);
  return Key(array, uint64_t{words[0]} << 32 | words[1], Mix(Mix(words[2], words[3]), words[4]));
}

void EndUse(uint64_t key) {
  Use use;
  if (!g_uses.Erase(key, &use)) return;
  if (use.user == kDescriptor) g_descriptors--;
  RemoveHandleUser(use.handle);
}

void AddUse(uint64_t key, const Use& use) {
  EndUse(key);  // what was there is replaced
  if (!AddHandleUser(use.handle)) return;
  if (!g_uses.Insert(key, use)) RemoveHandleUser(use.handle);
}

// A deferred array is mapped as a whole, and its parts are ignored by the driver.
uint64_t OnlyUseOf(uint64_t user) {
  uint64_t key = 0;
  int count = 0;
  g_uses.EraseIf([&](uint64_t k, const Use& use) {
    if (use.user == user) {
      key = k;
      count++;
    }
    return false;
  });
  return count == 1 ? key : 0;
}

void Apply(const CUarrayMapInfo& info) {
  const uint64_t array = reinterpret_cast<uint64_t>(info.resource);
  const uint64_t key = KeyOf(array, info);
  if (info.memOperationType == CU_MEM_OPERATION_TYPE_MAP) {
    AddUse(key, {array, 0, info.memHandle, 0});
  } else if (g_uses.Find(key)) {
    EndUse(key);
  } else if (const uint64_t only = OnlyUseOf(array)) {
    EndUse(only);
  }
}

template <typename Call>
CUresult MapArrays(const CUarrayMapInfo* list, unsigned count, Call&& call) {
  if (!InForce() || !list) return call();
  Held held(HandlesLock());
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  for (unsigned i = 0; i < count; i++) Apply(list[i]);
  return r;
}

void Bind(uint64_t multicast, uint64_t offset, CUmemGenericAllocationHandle handle) {
  const int slot = SlotOfHandle(handle);
  AddUse(Key(multicast, offset, static_cast<uint64_t>(slot) + 1), {multicast, offset, handle, slot});
}

// Ends uses for which `ends(use)` holds. One may be the last of an object that
// has uses itself, so the map is not walked while it changes.
template <typename Ends>
void EndUses(Ends&& ends) {
  for (;;) {
    uint64_t key = 0;
    g_uses.EraseIf([&](uint64_t k, const Use& use) {
      if (key == 0 && ends(use)) key = k;
      return false;
    });
    if (key == 0) return;
    EndUse(key);
  }
}

}  // namespace

void HandleUsesNothing(uint64_t handle) {
  if (g_uses.size() == 0) return;
  EndUses([=](const Use& use) { return use.user == handle; });
}

void ArrayUsesNothing(uint64_t array) {
  if (!InForce()) return;
  Held held(HandlesLock());
  HandleUsesNothing(array);
}

void LookAfterDescriptors() {
  if (g_descriptors == 0) return;
  EndUses([](const Use& use) { return use.user == kDescriptor && InodeOf(use.slot) != use.offset; });
}

void ForgetHandleUsers() {
  g_uses.Forget();
  g_descriptors = 0;
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  return MapArrays(list, count, [&] { return Through(Real().cuMemMapArrayAsync, list, count, stream); });
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  return MapArrays(list, count, [&] { return Through(Real().cuMemMapArrayAsync_ptsz, list, count, stream); });
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  auto call = [&] { return Through(Real().cuMemExportToShareableHandle, out, handle, type, flags); };
  if (!InForce() || !out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return call();
  Held held(HandlesLock());
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  const int descriptor = *static_cast<const int*>(out);
  const uint64_t key = Key(kDescriptor, static_cast<uint64_t>(descriptor), 0);
  AddUse(key, {kDescriptor, InodeOf(descriptor), handle, descriptor});
  if (g_uses.Find(key)) g_descriptors++;
  return r;
}

// An address in the switch; its memory is what is bound to it.
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* handle, const CUmulticastObjectProp* prop) {
  auto call = [&] { return Through(Real().cuMulticastCreate, handle, prop); };
  if (!InForce() || !handle) return call();
  Held held(HandlesLock());
  const CUresult r = call();
  if (r == CUDA_SUCCESS) AddBareHandle(*handle);
  return r;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                            CUmemGenericAllocationHandle handle, size_t handle_offset, size_t bytes,
                            unsigned long long flags) {
  auto call = [&] {
    return Through(Real().cuMulticastBindMem, multicast, offset, handle, handle_offset, bytes, flags);
  };
  if (!InForce()) return call();
  Held held(HandlesLock());
  const CUresult r = call();
  if (r == CUDA_SUCCESS) Bind(multicast, offset, handle);
  return r;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address,
                             size_t bytes, unsigned long long flags) {
  auto call = [&] { return Through(Real().cuMulticastBindAddr, multicast, offset, address, bytes, flags); };
  if (!InForce()) return call();
  Held held(HandlesLock());
  const CUresult r = call();
  if (r == CUDA_SUCCESS) {
    if (const auto handle = HandleMappedAt(address)) Bind(multicast, offset, handle);
  }
  return r;
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                           size_t bytes) {
  auto call = [&] { return Through(Real().cuMulticastUnbind, multicast, device, offset, bytes); };
  if (!InForce()) return call();
  const int slot = SlotOfDevice(device);
  Held held(HandlesLock());
  const CUresult r = call();
  if (r == CUDA_SUCCESS) {
    EndUses([=](const Use& use) {
      return use.user == multicast && use.slot == slot && use.offset >= offset && use.offset - offset < bytes;
    });
  }
  return r;
}

}  // extern "C"
