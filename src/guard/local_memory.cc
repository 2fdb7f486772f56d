// SPDX-License-Identifier: Apache-2.0
#include "guard/local_memory.h"

#include "guard/allocations.h"
#include "guard/credit.h"
#include "guard/current_context.h"
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
  uint64_t limit;  // as it was known last
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

// Threads that a device holds at once. Where it was never told, more than any has.
uint64_t ThreadsOf(CUdevice device) {
  constexpr CUdevice kDevices = 64;
  constexpr uint64_t kMost = 256 * 2048;
  static uint64_t told[kDevices];
  uint64_t sms = 0, threads = 0;
  const bool fits = device >= 0 && device < kDevices;
  const uint64_t known = fits ? __atomic_load_n(&told[device], __ATOMIC_RELAXED) : 0;
  if (known) return known;
  if (!Attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms) ||
      !Attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &threads)) {
    return kMost;
  }
  if (fits) __atomic_store_n(&told[device], sms * threads, __ATOMIC_RELAXED);
  return sms * threads;
}

// What the driver holds for a limit of `stack` bytes beyond what a context
// includes: whole pages that all threads' stacks fill (measured: the last,
// partly filled page comes out of the context's own).
uint64_t Charge(CUdevice device, uint64_t stack) {
  if (stack <= kDefaultStack || stack >= kAbsurdBytes >> 24) return 0;
  const uint64_t threads = ThreadsOf(device);
  const auto pages = [&](uint64_t bytes) { return RoundUp(bytes, kStackStep) * threads / kDevicePageBytes; };
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
  growth->context = CurrentContext();
  if (!growth->context || !CurrentDevice(&growth->device)) return false;
  growth->slot = SlotOfDevice(growth->device);
  return growth->slot >= 0;
}

uint64_t LastLimit(CUcontext context) {
  Held held(g_lock);
  const Stack* known = g_stacks.Find(reinterpret_cast<uint64_t>(context));
  return known ? known->limit : kDefaultStack;
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
    if (!Real().cuKernelGetAttribute || !CurrentDevice(&device) ||
        Real().cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, reinterpret_cast<CUkernel>(f),
                                    device) != CUDA_SUCCESS) {
      return kUnknownLocalBytes;
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
  if (!InForce() || bytes <= __atomic_load_n(&g_floor, __ATOMIC_RELAXED)) return true;
  const bool told = ReadLimit(&before);
  if ((told && bytes <= before) || !Current(growth)) return true;
  growth->watched = true;
  growth->before = told ? before : LastLimit(growth->context);
  growth->wanted = growth->before;
  if (bytes == kUnknownLocalBytes || bytes <= growth->before) return true;
  growth->wanted = bytes;
  const uint64_t now = Charge(growth->device, growth->before), then = Charge(growth->device, bytes);
  growth->reserved = then > now ? then - now : 0;
  return growth->reserved == 0 || Reserve(growth->slot, growth->reserved);
}

uint64_t EndStackGrowth(const StackGrowth& growth, CUresult r) {
  if (!growth.watched) return 0;
  Held held(g_lock);
  // What it has to be where the driver does not say.
  uint64_t stack = r == CUDA_SUCCESS ? growth.wanted : growth.before;
  Stack* known =
      g_stacks.Insert(reinterpret_cast<uint64_t>(growth.context), Stack{growth.slot, 0, kDefaultStack});
  if (!known) {
    if (growth.reserved) Cancel(growth.slot, growth.reserved);
    return 0;
  }
  ReadLimit(&stack);
  known->limit = stack;
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
  if (!growth.watched && Current(&growth)) {  // it may shrink
    growth.watched = true;
    growth.before = LastLimit(growth.context);
  }
  growth.wanted = value;
  const CUresult r = call();
  EndStackGrowth(growth, r);
  if (r == CUDA_SUCCESS && value < kDefaultStack) Lower(value);
  return r;
}

uint64_t DropStack(CUcontext context) {
  Held held(g_lock);
  Stack gone = {0, 0, 0};
  return g_stacks.Erase(reinterpret_cast<uint64_t>(context), &gone) ? gone.charged : 0;
}

void ForgetStacks() {
  g_lock.Reset();
  g_stacks.Forget();
  g_floor = kDefaultStack;
  ForgetSmallKernels();
}

}  // namespace gpumux::guard
