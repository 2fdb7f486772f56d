// SPDX-License-Identifier: Apache-2.0
//
// A context takes device memory that no allocation shows (518 MiB on an H200).
// The daemon charges it before it exists and corrects the figure by NVML after.
#include "guard/allocations.h"
#include "guard/backlog.h"
#include "guard/contexts.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/descriptors.h"
#include "guard/driver.h"
#include "guard/driver_objects.h"
#include "guard/gate.h"
#include "guard/limits.h"
#include "guard/local_memory.h"
#include "guard/lock.h"
#include "guard/mps.h"
#include "guard/own_part.h"
#include "guard/session.h"
#include "guard/streams.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Context {
  int slot;
  unsigned uses;  // cuCtxAttach and cuCtxDetach
};

constinit KeyMap<Context> g_created;  // by cuCtxCreate*
constinit uint32_t g_contexts[GPUMUX_MAX_GPUS] = {};
constinit CUcontext g_primary[GPUMUX_MAX_GPUS] = {};
constinit uint32_t g_retained[GPUMUX_MAX_GPUS] = {};  // times the primary context was, here

// May a context on `slot` be made? Refused only by the tenant's limit: without a
// daemon the limits page says what a context costs.
bool Charge(int slot) {
  const uint64_t bytes = Limits()->gpus[slot].context_bytes;
  if (PartsAreSet() && !PartHasRoom(slot, bytes)) {
    CountRefused(slot, bytes, Refusal::kOwnPart);
    return false;
  }
  return ChargeContext(slot, bytes);
}

void Gone(int slot, CUcontext context) {
  if (g_contexts[slot] > 0) g_contexts[slot]--;
  const bool last = g_contexts[slot] == 0;
  const uint64_t bytes = DropContext(context, slot, last) + DropLimits(context) + DropObjects(context);
  ForgetGreenOf(context);
  if (bytes) Release(slot, bytes);
  RefreshPools(slot, last);
  NoticeContexts(slot, g_contexts[slot]);
  CountContexts(-1);
  GateContextGone(context);
  LookAtDescriptors();
}

// After one was made, or was not (null).
void Made(int slot, CUcontext context) {
  if (context) g_contexts[slot]++;
  NoticeContexts(slot, g_contexts[slot]);
  if (!context) return;
  CountContexts(1);
  SendDescriptors();
  GateContextMade(context);
}

template <typename Create>
CUresult CreateContext(CUcontext* out, CUdevice device, Create&& create) {
  if (!InForce()) return create();
  const int slot = SlotOfDevice(device);
  if (slot == kNoDevice) return create();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  return AsMpsClient(slot, [&] {
    Held held(g_contexts_lock);
    if (!MayRunUnderMps(slot, device)) return CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (!Charge(slot)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult r = create();
    if (r == CUDA_SUCCESS && out) {
      ReadBackMps(slot, device, *out);
      g_created.Insert(reinterpret_cast<uint64_t>(*out), Context{slot, 1});
    }
    Made(slot, r == CUDA_SUCCESS && out ? *out : nullptr);
    return r;
  });
}

template <typename Destroy>
CUresult DestroyContext(CUcontext context, Destroy&& destroy) {
  if (!InForce()) return destroy();
  Held held(g_contexts_lock);
  ForgetSmallKernels();  // their handles may become others'
  GateContextEnds(context);
  const CUresult r = destroy();
  Context known;
  if (r == CUDA_SUCCESS && g_created.Erase(reinterpret_cast<uint64_t>(context), &known))
    Gone(known.slot, context);
  return r;
}

// For Release and Reset: whether the primary context is gone is the driver's
// to say, since others in the process may have retained it too.
template <typename Call>
CUresult EndPrimary(CUdevice device, bool all, Call&& call) {
  if (!InForce()) return call();
  const int slot = SlotOfDevice(device);
  if (slot < 0) return call();
  Held held(g_contexts_lock);
  const bool was_active = PrimaryIsActive(device, slot);
  ForgetSmallKernels();
  if (all || g_retained[slot] <= 1) GateContextEnds(g_primary[slot]);
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  if (all) g_retained[slot] = 0;
  LeavePrimary(device, slot, was_active);
  return r;
}

// Of a context that was made here, or of the primary one.
template <typename Call>
CUresult DetachContext(CUcontext context, Call&& call) {
  if (!InForce()) return call();
  {
    Held held(g_contexts_lock);
    Context* known = g_created.Find(reinterpret_cast<uint64_t>(context));
    if (known && known->uses > 1) {
      const CUresult r = call();
      if (r == CUDA_SUCCESS) known->uses--;
      return r;
    }
    if (!known) context = nullptr;
  }
  if (context) return DestroyContext(context, call);
  CUdevice device;
  return CurrentDevice(&device) ? EndPrimary(device, false, call) : call();
}

}  // namespace

constinit Lock g_contexts_lock;

// As the driver says; where it does not answer, as this process's own calls have it.
bool PrimaryIsActive(CUdevice device, int slot) {
  unsigned flags = 0;
  int active = 0;
  const bool told = Real().cuDevicePrimaryCtxGetState &&
                    Real().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS;
  return told ? active != 0 : g_retained[slot] > 0;
}

CUresult RetainPrimary(CUdevice device, int slot, CUcontext* context) {
  const bool active = PrimaryIsActive(device, slot);
  if (!active && !MayRunUnderMps(slot, device)) return CUDA_ERROR_MPS_CONNECTION_FAILED;
  if (!active && !Charge(slot)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = Through(Real().cuDevicePrimaryCtxRetain, context, device);
  if (r == CUDA_SUCCESS) g_retained[slot]++;
  if (active) return r;
  if (r == CUDA_SUCCESS && context) {
    ReadBackMps(slot, device, *context);
    g_primary[slot] = *context;
  }
  Made(slot, r == CUDA_SUCCESS && context ? *context : nullptr);
  return r;
}

CUcontext ActivePrimary(CUdevice device, int slot) {
  return PrimaryIsActive(device, slot) ? g_primary[slot] : nullptr;
}

void JoinPrimary(int slot) { g_retained[slot]++; }

void LeavePrimary(CUdevice device, int slot, bool was_active) {
  if (g_retained[slot] > 0) g_retained[slot]--;
  if (!was_active || PrimaryIsActive(device, slot)) return;
  Gone(slot, g_primary[slot]);
  g_primary[slot] = nullptr;
}

void ForgetContexts() {
  g_contexts_lock.Reset();
  g_created.Forget();
  for (auto& count : g_contexts) count = 0;
  for (auto& count : g_retained) count = 0;
  ForgetGreenContexts();
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuCtxCreate(CUcontext* ctx, unsigned flags, CUdevice dev) {
  return CreateContext(ctx, dev, [&] { return Through(Real().cuCtxCreate, ctx, flags, dev); });
}

CUresult cuCtxCreate_v2(CUcontext* ctx, unsigned flags, CUdevice dev) {
  return CreateContext(ctx, dev, [&] { return Through(Real().cuCtxCreate_v2, ctx, flags, dev); });
}

CUresult cuCtxCreate_v3(CUcontext* ctx, CUexecAffinityParam* params, int count, unsigned flags,
                        CUdevice dev) {
  return CreateContext(ctx, dev,
                       [&] { return Through(Real().cuCtxCreate_v3, ctx, params, count, flags, dev); });
}

CUresult cuCtxCreate_v4(CUcontext* ctx, CUctxCreateParams* params, unsigned flags, CUdevice dev) {
  return CreateContext(ctx, dev, [&] { return Through(Real().cuCtxCreate_v4, ctx, params, flags, dev); });
}

CUresult cuGLCtxCreate(CUcontext* ctx, unsigned flags, CUdevice dev) {
  return CreateContext(ctx, dev, [&] { return Through(Real().cuGLCtxCreate, ctx, flags, dev); });
}

CUresult cuGLCtxCreate_v2(CUcontext* ctx, unsigned flags, CUdevice dev) {
  return CreateContext(ctx, dev, [&] { return Through(Real().cuGLCtxCreate_v2, ctx, flags, dev); });
}

CUresult cuVDPAUCtxCreate(CUcontext* ctx, unsigned flags, CUdevice dev, unsigned vdp_device,
                          void* get_proc_address) {
  return CreateContext(ctx, dev, [&] {
    return Through(Real().cuVDPAUCtxCreate, ctx, flags, dev, vdp_device, get_proc_address);
  });
}

CUresult cuVDPAUCtxCreate_v2(CUcontext* ctx, unsigned flags, CUdevice dev, unsigned vdp_device,
                             void* get_proc_address) {
  return CreateContext(ctx, dev, [&] {
    return Through(Real().cuVDPAUCtxCreate_v2, ctx, flags, dev, vdp_device, get_proc_address);
  });
}

CUresult cuCtxDestroy(CUcontext ctx) {
  return DestroyContext(ctx, [&] { return Through(Real().cuCtxDestroy, ctx); });
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  return DestroyContext(ctx, [&] { return Through(Real().cuCtxDestroy_v2, ctx); });
}

CUresult cuCtxAttach(CUcontext* ctx, unsigned flags) {
  const CUresult r = Through(Real().cuCtxAttach, ctx, flags);
  if (r != CUDA_SUCCESS || !ctx || !InForce()) return r;
  Held held(g_contexts_lock);
  Context* known = g_created.Find(reinterpret_cast<uint64_t>(*ctx));
  const int slot = SlotOfCurrentContext();
  if (known) {
    known->uses++;
  } else if (slot >= 0) {
    JoinPrimary(slot);
  }
  return r;
}

// One user less; a context that nobody uses is destroyed.
CUresult cuCtxDetach(CUcontext ctx) {
  return DetachContext(ctx, [&] { return Through(Real().cuCtxDetach, ctx); });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice dev) {
  auto call = [&] { return Through(Real().cuDevicePrimaryCtxRetain, ctx, dev); };
  if (!InForce()) return call();
  const int slot = SlotOfDevice(dev);
  if (slot == kNoDevice) return call();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  return AsMpsClient(slot, [&] {
    Held held(g_contexts_lock);
    return RetainPrimary(dev, slot, ctx);
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
  return EndPrimary(dev, false, [&] { return Through(Real().cuDevicePrimaryCtxRelease, dev); });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return EndPrimary(dev, false, [&] { return Through(Real().cuDevicePrimaryCtxRelease_v2, dev); });
}

CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
  return EndPrimary(dev, true, [&] { return Through(Real().cuDevicePrimaryCtxReset, dev); });
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return EndPrimary(dev, true, [&] { return Through(Real().cuDevicePrimaryCtxReset_v2, dev); });
}

}  // extern "C"
