// SPDX-License-Identifier: Apache-2.0
//
// A context takes device memory that no allocation shows (518 MiB on an H200).
// The daemon charges it before it exists and corrects the figure by NVML after.
#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/driver.h"
#include "guard/driver_objects.h"
#include "guard/limits.h"
#include "guard/local_memory.h"
#include "guard/lock.h"
#include "guard/session.h"
#include "guard/streams.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Context {
  int slot;
  uint32_t users;
};

constinit Lock g_lock;                // held across the driver's call: two threads may retain at once
constinit KeyMap<Context> g_created;  // by cuCtxCreate*
constinit uint32_t g_contexts[GPUMUX_MAX_GPUS] = {};
constinit CUcontext g_primary[GPUMUX_MAX_GPUS] = {};
constinit uint32_t g_retained[GPUMUX_MAX_GPUS] = {};  // times the primary context was, here

// As the driver says; where it does not answer, as this process's own calls have it.
bool PrimaryIsActive(CUdevice device, int slot) {
  unsigned flags = 0;
  int active = 0;
  const bool told = Real().cuDevicePrimaryCtxGetState &&
                    Real().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS;
  return told ? active != 0 : g_retained[slot] > 0;
}

// May a context on `slot` be made? Refused only by the tenant's limit: without a
// daemon the limits page says what a context costs.
bool Charge(int slot) {
  bool granted = false;
  if (RequestContext(slot, &granted)) return granted;
  const uint64_t bytes = Limits()->gpus[slot].context_bytes;
  if (!Reserve(slot, bytes)) return false;
  Commit(slot, bytes);
  return true;
}

void Gone(int slot, CUcontext context) {
  if (g_contexts[slot] > 0) g_contexts[slot]--;
  const bool last = g_contexts[slot] == 0;
  const uint64_t bytes = DropContext(context, slot, last) + DropLimits(context) + DropObjects(context);
  if (bytes) Release(slot, bytes);
  RefreshPools(slot, last);
  NoticeContexts(slot, g_contexts[slot]);
}

template <typename Create>
CUresult CreateContext(CUcontext* out, CUdevice device, Create&& create) {
  if (!InForce()) return create();
  const int slot = SlotOfDevice(device);
  if (slot == kNoDevice) return create();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  Held held(g_lock);
  if (!Charge(slot)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = create();
  if (r == CUDA_SUCCESS && out) {
    g_created.Insert(reinterpret_cast<uint64_t>(*out), Context{slot, 1});
    g_contexts[slot]++;
  }
  NoticeContexts(slot, g_contexts[slot]);
  return r;
}

template <typename Destroy>
CUresult DestroyContext(CUcontext context, Destroy&& destroy) {
  if (!InForce()) return destroy();
  Held held(g_lock);
  ForgetSmallKernels();  // their handles may become others'
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
  Held held(g_lock);
  const bool was_active = PrimaryIsActive(device, slot);
  ForgetSmallKernels();
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  if (g_retained[slot] > 0) g_retained[slot] = all ? 0 : g_retained[slot] - 1;
  if (was_active && !PrimaryIsActive(device, slot)) Gone(slot, g_primary[slot]);
  return r;
}

}  // namespace

void ForgetContexts() {
  g_lock.Reset();
  g_created.Forget();
  for (auto& count : g_contexts) count = 0;
  for (auto& count : g_retained) count = 0;
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

// The current context has one user more ...
CUresult cuCtxAttach(CUcontext* ctx, unsigned flags) {
  auto call = [&] { return Through(Real().cuCtxAttach, ctx, flags); };
  if (!InForce() || !ctx) return call();
  Held held(g_lock);
  const CUresult r = call();
  Context* known = r == CUDA_SUCCESS ? g_created.Find(reinterpret_cast<uint64_t>(*ctx)) : nullptr;
  if (known) known->users++;
  return r;
}

// ... or one less, and is destroyed with the last.
CUresult cuCtxDetach(CUcontext ctx) {
  auto call = [&] { return Through(Real().cuCtxDetach, ctx); };
  if (!InForce()) return call();
  Held held(g_lock);
  ForgetSmallKernels();
  const CUresult r = call();
  Context* known = r == CUDA_SUCCESS ? g_created.Find(reinterpret_cast<uint64_t>(ctx)) : nullptr;
  if (!known || --known->users > 0) return r;
  const int slot = known->slot;
  g_created.Erase(reinterpret_cast<uint64_t>(ctx), nullptr);
  Gone(slot, ctx);
  return r;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* ctx, CUdevice dev) {
  auto call = [&] { return Through(Real().cuDevicePrimaryCtxRetain, ctx, dev); };
  if (!InForce()) return call();
  const int slot = SlotOfDevice(dev);
  if (slot == kNoDevice) return call();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  Held held(g_lock);
  const bool active = PrimaryIsActive(dev, slot);
  if (!active && !Charge(slot)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  if (r == CUDA_SUCCESS) g_retained[slot]++;
  if (active) return r;
  if (r == CUDA_SUCCESS && ctx) {
    g_primary[slot] = *ctx;
    g_contexts[slot]++;
  }
  NoticeContexts(slot, g_contexts[slot]);
  return r;
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
