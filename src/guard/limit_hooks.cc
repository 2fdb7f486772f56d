// SPDX-License-Identifier: Apache-2.0
//
// cuCtxSetLimit. A larger stack takes device memory for every thread that the
// device can hold, at once: 8 KiB instead of 1 KiB were 1.8 GiB on an H200. The
// device heap and the printf buffer are taken when a kernel first needs them, at
// which moment nothing can be refused: charged when they are set.
#include "guard/credit.h"
#include "guard/driver.h"
#include "guard/limits.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

constinit Lock g_lock;
// What was charged beyond a context's own share, by the context's slot.
constinit uint64_t g_charged[GPUMUX_MAX_GPUS][3] = {};

uint64_t ThreadsOf(CUdevice device) {
  int sms = 0, threads = 0;
  if (!Real().cuDeviceGetAttribute ||
      Real().cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
      Real().cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) !=
          CUDA_SUCCESS) {
    return 0;
  }
  return static_cast<uint64_t>(sms) * static_cast<uint64_t>(threads);
}

}  // namespace

void ForgetLimits() {
  g_lock.Reset();
  for (auto& gpu : g_charged) {
    for (auto& bytes : gpu) bytes = 0;
  }
}

uint64_t DropLimits(int slot) {
  Held held(g_lock);
  uint64_t sum = 0;
  for (auto& bytes : g_charged[slot]) {
    sum += bytes;
    bytes = 0;
  }
  return sum;
}

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  auto call = [&] { return Through(Real().cuCtxSetLimit, limit, value); };
  if (!InForce() ||
      (limit != CU_LIMIT_STACK_SIZE && limit != CU_LIMIT_MALLOC_HEAP_SIZE &&
       limit != CU_LIMIT_PRINTF_FIFO_SIZE) ||
      value >= kAbsurdBytes >> 24) {
    return call();
  }
  CUdevice device;
  size_t before = 0;
  if (!Real().cuCtxGetDevice || Real().cuCtxGetDevice(&device) != CUDA_SUCCESS || !Real().cuCtxGetLimit ||
      Real().cuCtxGetLimit(&before, limit) != CUDA_SUCCESS) {
    return call();
  }
  const int slot = SlotOfDevice(device);
  if (slot < 0) return call();
  Held held(g_lock);
  const uint64_t unit = limit == CU_LIMIT_STACK_SIZE ? ThreadsOf(device) : 1;
  uint64_t& charged = g_charged[slot][limit];
  const uint64_t growth = value > before ? RoundUp((value - before) * unit, kDevicePageBytes) : 0;
  if (growth && !Reserve(slot, growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult r = call();
  if (r != CUDA_SUCCESS) {
    if (growth) Cancel(slot, growth);
    return r;
  }
  if (growth) {
    Commit(slot, growth);
    charged += growth;
  } else {
    const uint64_t shrunk = RoundUp((before - value) * unit, kDevicePageBytes);
    const uint64_t back = shrunk < charged ? shrunk : charged;
    if (back) Release(slot, back);
    charged -= back;
  }
  return r;
}
