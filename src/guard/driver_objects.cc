// SPDX-License-Identifier: Apache-2.0
//
// Streams, and the account of what the driver takes for its own objects.
#include "guard/driver_objects.h"

#include "guard/allocations.h"
#include "guard/backlog.h"
#include "guard/contexts.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/descriptors.h"
#include "guard/gate.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

constexpr unsigned kKinds = 3;

struct Account {
  int slot;
  uint64_t live[kKinds], most[kKinds];
  uint64_t charged;
};

constinit Lock g_lock;  // of the account; g_growing before it
// Held across a call that may grow, so that two growths are told apart.
constinit Lock g_growing;
constinit KeyMap<Account> g_accounts;  // by context

// The most that `count` more objects take: two pages a stream (one for its
// queue, now and then one that many share); a page for what the nodes begin; four
// pages a green context (measured: two with 32 SMs, three with 100).
uint64_t AtMost(Objects kind, uint64_t count) {
  constexpr uint64_t kNodeBytes = 4096;
  switch (kind) {
    case Objects::kStreams:
      return 2 * count * kDevicePageBytes;
    case Objects::kGraphNodes:
      return RoundUp(count * kNodeBytes, kDevicePageBytes);
    case Objects::kGreenContexts:
      return 4 * count * kDevicePageBytes;
  }
  return 0;
}
// Nodes that can run at the same time take more than those in a row, which their
// number does not show: charged all the same, up to so many times.
constexpr uint64_t kParallelNodes = 8;

}  // namespace

uint64_t DeviceFree() {
  size_t free = 0, total = 0;
  return Real().cuMemGetInfo_v2 && Real().cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
}

namespace {

bool Begin(CUcontext context, int slot, Objects kind, uint64_t count, bool own, ObjectsCall* call) {
  call->slot = slot;
  if (count == 0 || call->slot < 0 || !context) return true;
  call->context = reinterpret_cast<uint64_t>(context);
  {
    Held held(g_lock);
    const Account* account = g_accounts.Insert(call->context, Account{call->slot, {}, {}, 0});
    const auto k = static_cast<unsigned>(kind);
    if (!account) return true;
    if (kind != Objects::kGreenContexts && account->live[k] + count <= account->most[k]) return true;
  }
  call->reserved = AtMost(kind, count);
  Refusal refusal;
  if (!(own ? TryReserve(call->slot, call->reserved, &refusal, /*reclaim=*/false)
            : Reserve(call->slot, call->reserved))) {
    return false;
  }
  call->grows = true;
  g_growing.Acquire();
  call->free_before = DeviceFree();
  return true;
}

}  // namespace

bool BeginObjects(Objects kind, uint64_t count, ObjectsCall* call) {
  return Begin(CurrentContext(), SlotOfCurrentContext(), kind, count, /*own=*/false, call);
}

bool BeginOwnObjects(Objects kind, uint64_t count, ObjectsCall* call) {
  return Begin(CurrentContext(), SlotOfCurrentContext(), kind, count, /*own=*/true, call);
}

bool BeginObjectsIn(CUcontext context, int slot, Objects kind, uint64_t count, ObjectsCall* call) {
  return Begin(context, slot, kind, count, /*own=*/false, call);
}

void EndObjects(Objects kind, uint64_t count, const ObjectsCall& call, bool made, uint64_t other) {
  if (call.context == 0) return;
  const uint64_t free_now = call.grows ? DeviceFree() : 0;
  Held held(g_lock);
  Account* account = g_accounts.Find(call.context);
  const auto k = static_cast<unsigned>(kind);
  if (account && made) {
    account->live[k] += count;
    if (account->live[k] > account->most[k]) account->most[k] = account->live[k];
  }
  if (!call.grows) return;
  g_growing.Release();
  uint64_t taken = call.free_before > free_now + other ? call.free_before - free_now - other : 0;
  // Where the driver did not say: all that it may be.
  if (call.free_before == 0 || free_now == 0) taken = call.reserved;
  if (!made) taken = 0;
  const uint64_t bound = kind == Objects::kGraphNodes ? kParallelNodes * call.reserved : call.reserved;
  if (taken > bound) taken = bound;
  taken -= taken % kDevicePageBytes;
  if (!account) taken = 0;
  Settle(call.slot, 0, taken, call.reserved);
  if (account) account->charged += taken;
}

void RemoveObjects(Objects kind, uint64_t count, CUcontext context) {
  Held held(g_lock);
  Account* account = g_accounts.Find(reinterpret_cast<uint64_t>(context));
  if (!account) return;
  uint64_t& live = account->live[static_cast<unsigned>(kind)];
  live -= count < live ? count : live;
}

uint64_t DropObjects(CUcontext context) {
  Held held(g_lock);
  Account gone = {0, {}, {}, 0};
  return g_accounts.Erase(reinterpret_cast<uint64_t>(context), &gone) ? gone.charged : 0;
}

void ForgetObjects() {
  g_lock.Reset();
  g_growing.Reset();
  g_accounts.Forget();
}

namespace {

// As it is booked: of a green context, the primary one.
bool ContextOfStream(CUstream stream, CUcontext* context) {
  CUgreenCtx green = nullptr;
  if (Real().cuStreamGetCtx_v2) return Real().cuStreamGetCtx_v2(stream, context, &green) == CUDA_SUCCESS;
  return Real().cuStreamGetCtx && Real().cuStreamGetCtx(stream, context) == CUDA_SUCCESS;
}

template <typename Create>
CUresult CreateStream(Create&& create) {
  CountStream();
  const LookAfter look;
  if (!InForce()) return create();
  ObjectsCall state;
  if (!BeginObjects(Objects::kStreams, 1, &state)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = create();
  EndObjects(Objects::kStreams, 1, state, r == CUDA_SUCCESS);
  return r;
}

template <typename Destroy>
CUresult DestroyStream(CUstream stream, Destroy&& destroy) {
  CUcontext context = nullptr;
  // The streams that every context has are not asked about: they cannot be destroyed.
  const bool known =
      InForce() && reinterpret_cast<uintptr_t>(stream) > 2 && ContextOfStream(stream, &context);
  StreamGone(stream);
  const CUresult r = destroy();
  if (r == CUDA_SUCCESS && known) RemoveObjects(Objects::kStreams, 1, context);
  return r;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return CreateStream([&] { return Through(Real().cuStreamCreate, stream, flags); });
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  return CreateStream([&] { return Through(Real().cuStreamCreateWithPriority, stream, flags, priority); });
}

CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned flags, int priority) {
  CountStream();
  const LookAfter look;
  auto call = [&] { return Through(Real().cuGreenCtxStreamCreate, stream, green, flags, priority); };
  CUcontext primary = nullptr;
  int slot = kNoDevice;
  if (!InForce() || !PrimaryOfGreen(green, &primary, &slot)) return call();
  const MadeCurrent current(primary);  // the driver goes by the green context, whichever is current
  ObjectsCall state;
  if (!BeginObjectsIn(primary, slot, Objects::kStreams, 1, &state)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  EndObjects(Objects::kStreams, 1, state, r == CUDA_SUCCESS);
  return r;
}

CUresult cuStreamDestroy(CUstream stream) {
  return DestroyStream(stream, [&] { return Through(Real().cuStreamDestroy, stream); });
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  return DestroyStream(stream, [&] { return Through(Real().cuStreamDestroy_v2, stream); });
}

}  // extern "C"
