// SPDX-License-Identifier: Apache-2.0
//
// cuCtxSetLimit. A larger stack takes device memory at once (local_memory.h).
// The device heap and the printf buffer are taken when a kernel first needs them,
// at which moment nothing can be refused: charged when they are set.
#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/limits.h"
#include "guard/local_memory.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

// Charged beyond a context's own share, and the limit as it was known last.
struct Buffer {
  uint64_t charged, limit;
};
struct Buffers {
  Buffer heap, printf;
};

constinit Lock g_lock;
constinit KeyMap<Buffers> g_buffers;  // by context

CUresult SetBuffer(CUlimit limit, size_t value) {
  auto call = [&] { return Through(Real().cuCtxSetLimit, limit, value); };
  const CUcontext context = CurrentContext();
  const int slot = SlotOfCurrentContext();
  if (slot < 0 || !context || value >= kAbsurdBytes) return call();
  Held held(g_lock);
  Buffers* buffers = g_buffers.Insert(reinterpret_cast<uint64_t>(context), Buffers{{0, 0}, {0, 0}});
  if (!buffers) return call();
  Buffer& buffer = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? buffers->heap : buffers->printf;
  size_t before = buffer.limit;
  if (!Real().cuCtxGetLimit || Real().cuCtxGetLimit(&before, limit) != CUDA_SUCCESS) before = buffer.limit;
  uint64_t& charged = buffer.charged;
  const uint64_t growth = value > before ? RoundUp(value - before, kDevicePageBytes) : 0;
  if (growth && !Reserve(slot, growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  const uint64_t shrunk = RoundUp(value < before ? before - value : 0, kDevicePageBytes);
  const uint64_t now = r != CUDA_SUCCESS ? charged : charged + growth - (shrunk < charged ? shrunk : charged);
  Settle(slot, charged, now, growth);
  charged = now;
  if (r == CUDA_SUCCESS) buffer.limit = value;
  return r;
}

}  // namespace

void ForgetLimits() {
  g_lock.Reset();
  g_buffers.Forget();
  ForgetStacks();
}

uint64_t DropLimits(CUcontext context) {
  Held held(g_lock);
  Buffers gone = {{0, 0}, {0, 0}};
  g_buffers.Erase(reinterpret_cast<uint64_t>(context), &gone);
  return gone.heap.charged + gone.printf.charged + DropStack(context);
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  if (InForce() && limit == CU_LIMIT_STACK_SIZE) return SetStackLimit(value);
  if (InForce() && (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE)) {
    return SetBuffer(limit, value);
  }
  return Through(Real().cuCtxSetLimit, limit, value);
}
