// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory and pools. One pool, as its charge moves:
//
//   alloc      reserve the largest step it may grow by ─▶ driver ─▶ read what
//              the pool reserves now ─▶ commit the difference, cancel the rest
//   free       the pool keeps the memory
//   synchronise, trim, threshold, destroy
//              the pool may have given memory back: read it again
//
// While any pool holds memory, the synchronising calls are followed by that
// reading (40 ns a pool on an H200); otherwise they cost one load.
#include "guard/backlog.h"
#include "guard/capturing.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/descriptors.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/streams.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Pool {
  CUmemoryPool handle;
  uint64_t charged;  // what it reserved when it was read last
  uint64_t live;     // allocations not freed yet
  uint64_t live_bytes;
  int16_t slot;    // kNotOurs: on a GPU without a promise; kElsewhere
  bool destroyed;  // the handle is void; the memory lives until `live` is 0
};

// A pool whose memory is not on a device, or another process's.
constexpr int kElsewhere = -3;

constinit Lock g_lock;  // held across the driver's call, so that two growths are told apart
// By an id of ours: a destroyed pool with live allocations outlasts its handle,
// which the driver may give to the next pool.
constinit KeyMap<Pool> g_pools;
constinit KeyMap<uint64_t> g_id_of_handle;
constinit uint64_t g_next_id = 1;
// Pools with a charge, plus one while plain memory waits for a synchronise.
constinit uint32_t g_to_refresh = 0;
// Plain memory that was freed in stream order: the driver has it until the next
// synchronise.
constinit uint64_t g_pending[GPUMUX_MAX_GPUS] = {};
// Each device's own pool, as the driver named it last.
constinit CUmemoryPool g_pool_of_slot[GPUMUX_MAX_GPUS] = {};
constinit bool g_any_pending = false;

bool ReadReserved(CUmemoryPool pool, uint64_t* bytes) {
  cuuint64_t value = 0;
  if (!Real().cuMemPoolGetAttribute ||
      Real().cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value) != CUDA_SUCCESS) {
    return false;
  }
  *bytes = value;
  return true;
}

void SetCharged(Pool* pool, uint64_t bytes) {
  if ((pool->charged == 0) != (bytes == 0)) {
    __atomic_add_fetch(&g_to_refresh, bytes ? 1 : -1, __ATOMIC_RELAXED);
  }
  pool->charged = bytes;
}

// Under g_lock. The pool reserves `now`; `reserved` bytes of credit were taken
// for its growth.
void SettlePool(Pool* pool, uint64_t now, uint64_t reserved) {
  Settle(pool->slot, pool->charged, now, reserved);
  SetCharged(pool, now);
}

// Under g_lock.
void RefreshOne(Pool* pool) {
  if (pool->charged == 0) return;
  uint64_t now = 0;
  if (pool->destroyed) {
    now = pool->live ? pool->charged : 0;
  } else if (!ReadReserved(pool->handle, &now)) {
    return;  // charged until the driver says otherwise
  }
  if (now != pool->charged) SettlePool(pool, now, 0);
}

// Under g_lock.
void RefreshAll() {
  g_pools.EraseIf([](uint64_t, Pool& pool) {
    RefreshOne(&pool);
    return pool.destroyed && pool.live == 0;
  });
  if (!g_any_pending) return;
  g_any_pending = false;
  __atomic_sub_fetch(&g_to_refresh, 1, __ATOMIC_RELAXED);
  for (int slot = 0; slot < GPUMUX_MAX_GPUS; slot++) {
    if (g_pending[slot]) Release(slot, g_pending[slot]);
    g_pending[slot] = 0;
  }
}

void ReleaseAtSynchronise(int slot, uint64_t bytes) {
  Held held(g_lock);
  g_pending[slot] += bytes;
  if (!g_any_pending) {
    g_any_pending = true;
    __atomic_add_fetch(&g_to_refresh, 1, __ATOMIC_RELAXED);
  }
}

void AfterSynchronise() {
  AnswerDescriptorsCall();
  if (__atomic_load_n(&g_to_refresh, __ATOMIC_RELAXED) == 0 || !InForce()) return;
  Held held(g_lock);
  RefreshAll();
}

// Under g_lock. The pool behind a handle, made known with `slot` if it is new.
Pool* Known(CUmemoryPool handle, int slot, uint64_t* id_out = nullptr) {
  const uint64_t* id = g_id_of_handle.Insert(reinterpret_cast<uint64_t>(handle), g_next_id);
  if (!id) return nullptr;
  if (*id == g_next_id) g_next_id++;
  if (id_out) *id_out = *id;
  return g_pools.Insert(*id, Pool{handle, 0, 0, 0, static_cast<int16_t>(slot), false});
}

Pool* FindByHandle(CUmemoryPool handle) {
  const uint64_t* id = g_id_of_handle.Find(reinterpret_cast<uint64_t>(handle));
  return id ? g_pools.Find(*id) : nullptr;
}

// By our own count: the driver's does not come down for memory that was freed by
// cuMemFree (measured).
bool MayFitInside(const Pool& pool, uint64_t bytes) {
  return pool.charged >= pool.live_bytes && pool.charged - pool.live_bytes >= bytes;
}

// Makes room for a growth by `growth`, giving back what this pool keeps unused
// if that is what it takes, and only then asking others to do so: for a call of
// `bytes` that does not fit into what the pool has.
bool ReserveGrowth(uint64_t id, uint64_t growth, uint64_t bytes, Refusal* refusal) {
  Pool* pool = g_pools.Find(id);
  const uint64_t before = pool->charged;
  if (TryReserve(pool->slot, growth, refusal, /*reclaim=*/false)) return true;
  RefreshAll();  // erases destroyed pools only, which this one is not; others may move
  pool = g_pools.Find(id);
  if (Real().cuMemPoolTrimTo) Real().cuMemPoolTrimTo(pool->handle, 0);
  RefreshOne(pool);
  const bool fits = MayFitInside(*pool, bytes);
  if (fits && pool->charged >= before) return false;
  return TryReserve(pool->slot, growth, refusal, /*reclaim=*/!fits);
}

// The pool grew although there is no room. True: undone, the growth is nobody's to give.
template <typename FreeCall, typename SyncCall>
bool UndoGrowth(CUmemoryPool handle, const Pool& pool, CUdeviceptr address, FreeCall&& free_call,
                SyncCall&& sync_call) {
  if (free_call(address) != CUDA_SUCCESS && Through(Real().cuMemFree_v2, address) != CUDA_SUCCESS)
    return false;
  sync_call();
  if (Real().cuMemPoolTrimTo) Real().cuMemPoolTrimTo(handle, static_cast<size_t>(pool.charged));
  return true;
}

template <typename Call, typename FreeCall, typename SyncCall>
CUresult AllocateFrom(CUmemoryPool handle, int slot, uint64_t bytes, CUdeviceptr* address, Call&& call,
                      FreeCall&& free_call, SyncCall&& sync_call) {
  Held held(g_lock);
  uint64_t id = 0;
  Pool* pool = Known(handle, slot, &id);
  if (pool && pool->slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!pool || pool->slot < 0) return call();
  const uint64_t growth = RoundUp(bytes, kPoolGrowthBytes);
  Refusal refusal;
  const uint64_t reserved = ReserveGrowth(id, growth, bytes, &refusal) ? growth : 0;
  pool = g_pools.Find(id);
  if (reserved == 0 && !MayFitInside(*pool, bytes)) {
    CountRefused(pool->slot, growth, refusal);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUdeviceptr untouched = *address;
  const CUresult r = call();
  // Where the driver does not say, it grew as far as it may.
  uint64_t now = pool->charged + (r == CUDA_SUCCESS ? reserved : 0);
  const bool told = ReadReserved(handle, &now);
  if (r == CUDA_SUCCESS && reserved == 0 && (!told || now > pool->charged) &&
      UndoGrowth(handle, *pool, *address, free_call, sync_call)) {
    ReadReserved(handle, &now);
    SettlePool(pool, now, 0);
    *address = untouched;
    CountRefused(pool->slot, growth, refusal);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  SettlePool(pool, now, reserved);
  if (r == CUDA_SUCCESS) {
    pool->live++;
    pool->live_bytes += bytes;
    Remember(*address, {bytes, id, nullptr, pool->slot, Family::kStream});
  } else if (r == CUDA_ERROR_OUT_OF_MEMORY) {
    CountDeviceFull(pool->slot, growth);
  }
  return r;
}

// The pool from which cuMemAllocAsync allocates; null where the driver never told it.
CUmemoryPool PoolOf(CUdevice device, int slot) {
  CUmemoryPool pool = nullptr;
  if (Real().cuDeviceGetMemPool && Real().cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS) {
    __atomic_store_n(&g_pool_of_slot[slot], pool, __ATOMIC_RELAXED);
  }
  return __atomic_load_n(&g_pool_of_slot[slot], __ATOMIC_RELAXED);
}

// From a pool that is not known: charged as the largest step that it may have
// grown by, until it is freed.
template <typename Call>
CUresult AllocateUnpooled(int slot, uint64_t bytes, CUdeviceptr* address, Call&& call) {
  const uint64_t charge = RoundUp(bytes, kPoolGrowthBytes);
  if (!Reserve(slot, charge)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    Cancel(slot, charge);
    return r;
  }
  Commit(slot, charge);
  Remember(*address, {charge, 0, CurrentContext(), static_cast<int16_t>(slot), Family::kWhole});
  return r;
}

// Of a pool that no call of ours made: a device's own.
int SlotOfOwnPool(CUmemoryPool handle) {
  const int devices = Real().cuDeviceGetDefaultMemPool ? VisibleDevices() : 0;
  for (CUdevice device = 0; devices > 1 && device < devices; device++) {
    CUmemoryPool own = nullptr;
    if (Real().cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == handle)
      return SlotOfDevice(device);
  }
  return SlotOfCurrentContext();
}

template <typename IsCapturing, typename Call, typename FreeCall, typename SyncCall>
CUresult AllocateAsync(CUdeviceptr* ptr, size_t bytes, CUstream stream, IsCapturing&& capturing, Call&& call,
                       FreeCall&& free_call, SyncCall&& sync_call) {
  if (!InForce() || !ptr || bytes == 0 || bytes >= kAbsurdBytes || capturing()) return call();
  CUdevice device = 0;
  if (!DeviceOfStream(stream, &device)) return call();
  const int slot = SlotOfDevice(device);
  if (slot == kNoDevice) return call();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUmemoryPool pool = PoolOf(device, slot);
  if (pool) return AllocateFrom(pool, slot, bytes, ptr, call, free_call, sync_call);
  if (!Real().cuDeviceGetMemPool) return call();  // the driver has no pools: it will say so
  return AllocateUnpooled(slot, bytes, ptr, call);
}

template <typename IsCapturing, typename Call, typename FreeCall, typename SyncCall>
CUresult AllocateFromPool(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool, IsCapturing&& capturing,
                          Call&& call, FreeCall&& free_call, SyncCall&& sync_call) {
  if (!InForce() || !ptr || !pool || bytes == 0 || bytes >= kAbsurdBytes || capturing()) return call();
  if (SlotOfCurrentContext() == kNoDevice) return call();
  bool known = false;
  {
    Held held(g_lock);
    known = FindByHandle(pool) != nullptr;
  }
  const int slot = known ? 0 : SlotOfOwnPool(pool);
  return AllocateFrom(pool, slot, bytes, ptr, call, free_call, sync_call);
}

template <typename Call>
CUresult FreeAsync(CUdeviceptr ptr, Call&& call) {
  Allocation allocation;
  if (!InForce() || !Take(ptr, &allocation)) return call();
  const CUresult r = call();
  if (allocation.family == Family::kStream) return FreeStreamOrdered(ptr, allocation, r);
  // Plain memory may be freed in stream order too.
  if (r != CUDA_SUCCESS) {
    Remember(ptr, allocation);
  } else if (allocation.family == Family::kPiece) {
    if (DropPiece(ptr)) ReleaseAtSynchronise(allocation.slot, kSlabBytes);
  } else {
    ReleaseAtSynchronise(allocation.slot, allocation.bytes);
  }
  return r;
}

// Runs `call` on a pool and reads the pool afterwards.
template <typename Call>
CUresult OnPool(CUmemoryPool handle, Call&& call) {
  if (!InForce()) return call();
  Held held(g_lock);
  const CUresult r = call();
  if (Pool* pool = FindByHandle(handle)) RefreshOne(pool);
  return r;
}

}  // namespace

CUresult FreeStreamOrdered(CUdeviceptr ptr, const Allocation& allocation, CUresult r) {
  if (r != CUDA_SUCCESS) {
    Remember(ptr, allocation);
    return r;
  }
  Held held(g_lock);
  if (Pool* pool = g_pools.Find(allocation.pool)) {
    if (pool->live > 0) pool->live--;
    pool->live_bytes -= allocation.bytes < pool->live_bytes ? allocation.bytes : pool->live_bytes;
    if (!pool->destroyed) RefreshOne(pool);
  }
  return r;
}

void RefreshPools(int slot, bool last) {
  if (__atomic_load_n(&g_to_refresh, __ATOMIC_RELAXED) == 0) return;
  Held held(g_lock);
  RefreshAll();
  if (!last) return;
  // Without a context nobody holds what a pool still seems to have.
  g_pools.EraseIf([slot](uint64_t, Pool& pool) {
    uint64_t now = 0;
    if (pool.slot != slot || pool.charged == 0 || (!pool.destroyed && ReadReserved(pool.handle, &now)))
      return false;
    SettlePool(&pool, 0, 0);
    return pool.destroyed;
  });
}

void ForgetPools() {
  g_lock.Reset();
  for (auto& pool : g_pool_of_slot) pool = nullptr;
  g_pools.Forget();
  g_id_of_handle.Forget();
  g_to_refresh = 0;
  g_any_pending = false;
  for (auto& bytes : g_pending) bytes = 0;
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

// Its memory is its owner's, who is charged; allocations from it cost nothing here.
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  const LookAfter look;
  const CUresult r = Through(Real().cuMemPoolImportFromShareableHandle, pool, handle, type, flags);
  if (r == CUDA_SUCCESS && InForce() && pool) {
    Held held(g_lock);
    if (Pool* p = Known(*pool, kElsewhere)) p->slot = kElsewhere;
  }
  return r;
}

// What is captured takes memory when the graph runs, and nothing now. Where the driver
// does not say, the call goes on as if it took memory: if it does not, the pool shows that.
CUresult cuMemAllocAsync(CUdeviceptr* ptr, size_t bytes, CUstream stream) {
  return AllocateAsync(
      ptr, bytes, stream, [&] { return IsCapturing(stream, /*per_thread=*/false); },
      [&] { return Through(Real().cuMemAllocAsync, ptr, bytes, stream); },
      [&](CUdeviceptr p) { return Through(Real().cuMemFreeAsync, p, stream); },
      [&] { Through(Real().cuStreamSynchronize, stream); });
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* ptr, size_t bytes, CUstream stream) {
  return AllocateAsync(
      ptr, bytes, stream, [&] { return IsCapturing(stream, /*per_thread=*/true); },
      [&] { return Through(Real().cuMemAllocAsync_ptsz, ptr, bytes, stream); },
      [&](CUdeviceptr p) { return Through(Real().cuMemFreeAsync_ptsz, p, stream); },
      [&] { Through(Real().cuStreamSynchronize_ptsz, stream); });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return AllocateFromPool(
      ptr, bytes, pool, [&] { return IsCapturing(stream, /*per_thread=*/false); },
      [&] { return Through(Real().cuMemAllocFromPoolAsync, ptr, bytes, pool, stream); },
      [&](CUdeviceptr p) { return Through(Real().cuMemFreeAsync, p, stream); },
      [&] { Through(Real().cuStreamSynchronize, stream); });
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* ptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
  return AllocateFromPool(
      ptr, bytes, pool, [&] { return IsCapturing(stream, /*per_thread=*/true); },
      [&] { return Through(Real().cuMemAllocFromPoolAsync_ptsz, ptr, bytes, pool, stream); },
      [&](CUdeviceptr p) { return Through(Real().cuMemFreeAsync_ptsz, p, stream); },
      [&] { Through(Real().cuStreamSynchronize_ptsz, stream); });
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
  return FreeAsync(ptr, [&] { return Through(Real().cuMemFreeAsync, ptr, stream); });
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream) {
  return FreeAsync(ptr, [&] { return Through(Real().cuMemFreeAsync_ptsz, ptr, stream); });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  const LookAfter look;
  const CUresult r = Through(Real().cuMemPoolCreate, pool, props);
  if (r == CUDA_SUCCESS && InForce() && pool && props) {
    const bool on_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    Held held(g_lock);
    if (Pool* p = Known(*pool, 0)) {
      p->slot = static_cast<int16_t>(on_device ? SlotOfDevice(props->location.id) : kElsewhere);
    }
  }
  return r;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  auto call = [&] { return Through(Real().cuMemPoolDestroy, pool); };
  if (!InForce()) return call();
  Held held(g_lock);
  const CUresult r = call();
  uint64_t id = 0;
  if (r == CUDA_SUCCESS && g_id_of_handle.Erase(reinterpret_cast<uint64_t>(pool), &id)) {
    Pool* known = g_pools.Find(id);
    if (known && known->live > 0) {
      known->destroyed = true;
    } else if (known) {
      if (known->charged) SettlePool(known, 0, 0);
      g_pools.Erase(id, nullptr);
    }
  }
  return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  return OnPool(pool, [&] { return Through(Real().cuMemPoolTrimTo, pool, keep); });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  return OnPool(pool, [&] { return Through(Real().cuMemPoolSetAttribute, pool, attr, value); });
}

CUresult cuStreamSynchronize(CUstream stream) {
  GateWait gate(stream, false);
  Wait wait(IsOnlyStream(stream));
  const CUresult r = gate.Over(wait.Over(Through(Real().cuStreamSynchronize, stream)));
  AfterSynchronise();
  return r;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  GateWait gate(stream, true);
  Wait wait(false);
  const CUresult r = gate.Over(wait.Over(Through(Real().cuStreamSynchronize_ptsz, stream)));
  AfterSynchronise();
  return r;
}

// In what a program that polls calls again and again, "not ready" is the usual answer.
CUresult cuStreamQuery(CUstream stream) {
  const CUresult r = Through(Real().cuStreamQuery, stream);
  if (__builtin_expect(r == CUDA_SUCCESS && LaunchWord() != 0, 0)) {
    const GateWait gate(kAnyStream, false);
  }
  return r;
}

CUresult cuStreamQuery_ptsz(CUstream stream) {
  const CUresult r = Through(Real().cuStreamQuery_ptsz, stream);
  if (__builtin_expect(r == CUDA_SUCCESS && LaunchWord() != 0, 0)) {
    const GateWait gate(kAnyStream, true);
  }
  return r;
}

CUresult cuEventQuery(CUevent event) {
  const CUresult r = Through(Real().cuEventQuery, event);
  if (__builtin_expect(r == CUDA_SUCCESS && LaunchWord() != 0, 0)) {
    const GateWait gate(kAnyStream, false);
  }
  return r;
}

CUresult cuEventSynchronize(CUevent event) {
  const GateWait gate(kAnyStream, false);
  Wait wait(false);
  const CUresult r = wait.Over(Through(Real().cuEventSynchronize, event));
  AfterSynchronise();
  return r;
}

CUresult cuCtxSynchronize() {
  GateWait gate(kAllStreams, false);
  Wait wait(true);
  const CUresult r = gate.Over(wait.Over(Through(Real().cuCtxSynchronize)));
  AfterSynchronise();
  return r;
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  const GateWait gate(kAnyStream, false);
  Wait wait(true);
  const CUresult r = wait.Over(Through(Real().cuCtxSynchronize_v2, ctx));
  AfterSynchronise();
  return r;
}

}  // extern "C"
