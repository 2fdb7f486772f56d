// SPDX-License-Identifier: Apache-2.0
#include "guard/local_memory.h"

#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/driver.h"
#include "guard/lock.h"
#include "guard/rounding.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

constinit CUfunction g_small_kernels[kSmallKernels] = {};

namespace {

// What a new context has, and its allowance includes.
constexpr uint64_t kDefaultStack = 1024;
// The driver rounds the limit up to this.
constexpr uint64_t kStackStep = 16;

struct Stack {
  int slot;
  uint64_t charged;
};

constinit Lock g_lock;
constinit KeyMap<Stack> g_stacks;  // by context
// The lowest limit that any context was given: what is above may grow one.
constinit uint64_t g_floor = kDefaultStack;

bool Attribute(CUdevice device, CUdevice_attribute attribute, uint64_t* value) {
  int v = 0;
  if (!Real().cuDeviceGetAttribute || Real().cuDeviceGetAttribute(&v, attribute, device) != CUDA_SUCCESS ||
      v <= 0) {
    return false;
  }
  *value = static_cast<uint64_t>(v);
  return true;
}

// What the driver holds for a limit of `stack` bytes beyond what a context
// includes: whole pages that all threads' stacks fill (measured: the last,
// partly filled page comes out of the context's own).
uint64_t Charge(CUdevice device, uint64_t stack) {
  uint64_t sms = 0, threads = 0;
  if (stack <= kDefaultStack || stack >= kAbsurdBytes >> 24 ||
      !Attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms) ||
      !Attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads)) {
    return 0;
  }
  const auto pages = [&](uint64_t bytes) {
    return RoundUp(bytes, kStackStep) * sms * threads / kDevicePageBytes;
  };
  return (pages(stack) - pages(kDefaultStack)) * kDevicePageBytes;
}

bool ReadLimit(uint64_t* stack) {
  size_t value = 0;
  if (!Real().cuCtxGetLimit || Real().cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS)
    return false;
  *stack = value;
  return true;
}

// The current context as the driver has it now.
bool Current(StackGrowth* growth) {
  if (!Real().cuCtxGetCurrent || Real().cuCtxGetCurrent(&growth->context) != CUDA_SUCCESS ||
      !growth->context || !Real().cuCtxGetDevice || Real().cuCtxGetDevice(&growth->device) != CUDA_SUCCESS) {
    return false;
  }
  growth->slot = SlotOfDevice(growth->device);
  return growth->slot >= 0;
}

void Lower(uint64_t stack) {
  Held held(g_lock);
  if (stack < g_floor) g_floor = stack;
  ForgetSmallKernels();
}

}  // namespace

void ForgetSmallKernels() {
  for (auto& cell : g_small_kernels) __atomic_store_n(&cell, nullptr, __ATOMIC_RELAXED);
}

uint64_t LocalBytesOf(CUfunction f) {
  int bytes = 0;
  if (!f) return 0;
  if (!Real().cuFuncGetAttribute ||
      Real().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f) != CUDA_SUCCESS) {
    // A kernel of a library, whose need may differ from device to device.
    CUdevice device;
    if (!Real().cuKernelGetAttribute || !Real().cuCtxGetDevice ||
        Real().cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        Real().cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, reinterpret_cast<CUkernel>(f),
                                    device) != CUDA_SUCCESS) {
      return 0;
    }
  }
  if (bytes < 0) return 0;
  const auto need = static_cast<uint64_t>(bytes);
  if (need <= __atomic_load_n(&g_floor, __ATOMIC_RELAXED)) {
    __atomic_store_n(&g_small_kernels[SmallKernelCell(f)], f, __ATOMIC_RELAXED);
  }
  return need;
}

bool BeginStackGrowth(uint64_t bytes, StackGrowth* growth) {
  uint64_t before = 0;
  if (!InForce() || bytes <= __atomic_load_n(&g_floor, __ATOMIC_RELAXED) || !ReadLimit(&before) ||
      bytes <= before || !Current(growth)) {
    return true;
  }
  growth->watched = true;
  const uint64_t now = Charge(growth->device, before), then = Charge(growth->device, bytes);
  growth->reserved = then > now ? then - now : 0;
  return growth->reserved == 0 || Reserve(growth->slot, growth->reserved);
}

uint64_t EndStackGrowth(const StackGrowth& growth, CUresult r) {
  if (!growth.watched) return 0;
  Held held(g_lock);
  uint64_t stack = 0;
  Stack* known = g_stacks.Insert(reinterpret_cast<uint64_t>(growth.context), Stack{growth.slot, 0});
  if (!known || !ReadLimit(&stack)) {
    if (growth.reserved) Cancel(growth.slot, growth.reserved);
    return 0;
  }
  const uint64_t now = Charge(growth.device, stack);
  const uint64_t grown = now > known->charged ? now - known->charged : 0;
  Settle(growth.slot, known->charged, now, growth.reserved);
  known->charged = now;
  if (r == CUDA_ERROR_OUT_OF_MEMORY) CountDeviceFull(growth.slot, growth.reserved);
  return grown;
}

CUresult SetStackLimit(size_t value) {
  StackGrowth growth;
  auto call = [&] { return Through(Real().cuCtxSetLimit, CU_LIMIT_STACK_SIZE, value); };
  if (!BeginStackGrowth(value, &growth)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!growth.watched) growth.watched = Current(&growth);  // it may shrink
  const CUresult r = call();
  EndStackGrowth(growth, r);
  if (r == CUDA_SUCCESS && value < kDefaultStack) Lower(value);
  return r;
}

uint64_t DropStack(CUcontext context) {
  Held held(g_lock);
  Stack gone = {0, 0};
  return g_stacks.Erase(reinterpret_cast<uint64_t>(context), &gone) ? gone.charged : 0;
}

void ForgetStacks() {
  g_lock.Reset();
  g_stacks.Forget();
  g_floor = kDefaultStack;
  ForgetSmallKernels();
}

}  // namespace gpumux::guard
