// SPDX-License-Identifier: Apache-2.0
//
// Green contexts. One is the primary context under another handle, with some of
// the GPU's SMs: it makes the primary if need be, keeps it, and takes a few MiB of
// device memory of its own, which stay with the primary (measured on an H200).
// Memory and limits that a program asks for in it are the primary's.
#include "guard/allocations.h"
#include "guard/contexts.h"
#include "guard/driver.h"
#include "guard/driver_objects.h"
#include "guard/local_memory.h"
#include "guard/lock.h"
#include "guard/mps.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

struct Green {
  CUdevice device;
  int slot;
  CUcontext primary;
};
struct View {
  CUgreenCtx green;
  CUcontext primary;
};

constinit Lock g_lock;  // of these; after g_contexts_lock
constinit KeyMap<Green> g_greens;
constinit KeyMap<View> g_views;  // by the CUcontext that stands for a green context
constinit uint32_t g_view_count = 0;

// Under g_lock.
void CountViews() {
  __atomic_store_n(&g_view_count, static_cast<uint32_t>(g_views.size()), __ATOMIC_RELAXED);
}

void RememberView(CUcontext view, CUgreenCtx green) {
  Held held(g_lock);
  const Green* known = g_greens.Find(reinterpret_cast<uint64_t>(green));
  if (!known) return;
  View* entry = g_views.Insert(reinterpret_cast<uint64_t>(view), View{green, known->primary});
  if (entry) *entry = View{green, known->primary};
  CountViews();
}

void Remember(CUgreenCtx green, const Green& what) {
  {
    Held held(g_lock);
    Green* entry = g_greens.Insert(reinterpret_cast<uint64_t>(green), what);
    if (!entry) return;
    *entry = what;  // an old one of this handle ended with its primary context
  }
  // A program may learn the handle from a stream as well.
  CUcontext view = nullptr;
  if (Real().cuCtxFromGreenCtx && Real().cuCtxFromGreenCtx(&view, green) == CUDA_SUCCESS) {
    RememberView(view, green);
  }
}

bool Find(CUgreenCtx green, Green* found) {
  Held held(g_lock);
  const Green* known = g_greens.Find(reinterpret_cast<uint64_t>(green));
  if (known) *found = *known;
  return known != nullptr;
}

template <typename Call>
CUresult CreateWithin(CUcontext primary, int slot, Call&& call) {
  const MadeCurrent current(primary);
  ObjectsCall state;
  if (!BeginObjectsIn(primary, slot, Objects::kGreenContexts, 1, &state)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  EndObjects(Objects::kGreenContexts, 1, state, r == CUDA_SUCCESS);
  return r;
}

template <typename Call>
CUresult CreateGreen(CUgreenCtx* green, CUdevice dev, int slot, Call&& call) {
  Held held(g_contexts_lock);
  // Made before, so that what the primary context takes and what the green one
  // takes are told apart.
  CUcontext primary = ActivePrimary(dev, slot);
  const bool retain = !primary;
  if (retain) {
    if (CUresult r = RetainPrimary(dev, slot, &primary); r != CUDA_SUCCESS) return r;
  }
  const CUresult r = CreateWithin(primary, slot, call);
  if (r == CUDA_SUCCESS) {
    JoinPrimary(slot);
    Remember(*green, Green{dev, slot, primary});
  }
  if (retain) {
    Through(Real().cuDevicePrimaryCtxRelease_v2, dev);
    LeavePrimary(dev, slot, true);
  }
  return r;
}

}  // namespace

CUcontext BaseOf(CUcontext context) {
  if (__atomic_load_n(&g_view_count, __ATOMIC_RELAXED) == 0) return context;
  Held held(g_lock);
  const View* view = g_views.Find(reinterpret_cast<uint64_t>(context));
  return view ? view->primary : context;
}

bool PrimaryOfGreen(CUgreenCtx green, CUcontext* primary, int* slot) {
  Green found;
  if (!Find(green, &found)) return false;
  *primary = found.primary;
  *slot = found.slot;
  return true;
}

void ForgetGreenOf(CUcontext primary) {
  Held held(g_lock);
  g_views.EraseIf([&](uint64_t, View& view) { return view.primary == primary; });
  CountViews();
}

void ForgetGreenContexts() {
  g_lock.Reset();
  g_greens.Forget();
  g_views.Forget();
  CountViews();
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

CUresult cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc desc, CUdevice dev, unsigned flags) {
  auto call = [&] { return Through(Real().cuGreenCtxCreate, green, desc, dev, flags); };
  if (!InForce() || !green || !Real().cuGreenCtxCreate) return call();
  const int slot = SlotOfDevice(dev);
  if (slot == kNoDevice) return call();
  if (slot == kNotOurs) return CUDA_ERROR_OUT_OF_MEMORY;
  return AsMpsClient(slot, [&] { return CreateGreen(green, dev, slot, call); });
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  auto call = [&] { return Through(Real().cuGreenCtxDestroy, green); };
  Green known;
  if (!InForce() || !Find(green, &known)) return call();
  Held held(g_contexts_lock);
  const bool was_active = PrimaryIsActive(known.device, known.slot);
  ForgetSmallKernels();  // the primary context may end with it
  const CUresult r = call();
  if (r != CUDA_SUCCESS) return r;
  {
    Held views(g_lock);
    g_greens.Erase(reinterpret_cast<uint64_t>(green), nullptr);
    g_views.EraseIf([&](uint64_t, View& view) { return view.green == green; });
    CountViews();
  }
  LeavePrimary(known.device, known.slot, was_active);
  return r;
}

CUresult cuCtxFromGreenCtx(CUcontext* ctx, CUgreenCtx green) {
  const CUresult r = Through(Real().cuCtxFromGreenCtx, ctx, green);
  if (r == CUDA_SUCCESS && InForce()) RememberView(*ctx, green);
  return r;
}

}  // extern "C"
