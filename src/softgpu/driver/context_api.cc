// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "sim/gpu_spec.h"
#include "softgpu/driver/api.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/driver_objects.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/graph_memory.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/stack.h"
#include "softgpu/driver/thread_state.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// Guards the life of contexts: creation, destruction, primary counts.
std::mutex& LifeMutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

// Every context there ever was, to tell handles from other numbers.
struct Known {
  std::mutex mutex;
  std::unordered_set<const void*> contexts;
};
Known& AllContexts() {
  static Known* known = new Known;
  return *known;
}

// The contexts that are current in a thread, the last on top.
using ContextStack = std::vector<Context*>;
ContextStack& Stack() { return OfThisThread<ContextStack>(); }
constexpr size_t kMaxStack = 1 << 16;
constexpr size_t kDefaultHeapBytes = 8 << 20;

Context* NewContext(Device* device, bool primary) {
  static std::atomic<uint64_t> next_id{1};
  auto* context = new Context;
  context->device = device;
  context->primary = primary;
  context->id = next_id++;
  Known& known = AllContexts();
  std::lock_guard lock(known.mutex);
  known.contexts.insert(context);
  return context;
}

CUresult Activate(Context* context) {
  if (CUresult error = Driver::Get().AddContext(context->device); error != CUDA_SUCCESS) return error;
  if (!Engine::Get().Start()) {
    Driver::Get().Change(*context->device, Op::kRemoveContext);
    return CUDA_ERROR_UNKNOWN;
  }
  context->sticky = CUDA_SUCCESS;
  context->users = 1;
  context->stack_bytes = sim::kH200.default_stack_bytes;
  context->heap_bytes = kDefaultHeapBytes;
  context->printf_bytes = Context::kDefaultPrintfBytes;
  context->pending_launches = Context::kDefaultPendingLaunches;
  context->l2_granularity = Context::kDefaultL2Granularity;
  context->persisting_l2 = Context::kDefaultPersistingL2;
  Engine::Get().AddContext(context);
  context->alive.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

void Deactivate(Context* context) {
  for (Context* green : std::exchange(context->green_contexts, {})) green->alive = false;
  Engine::Get().RemoveContext(context);
  context->alive.store(false, std::memory_order_release);
  Arrays::Get().RemoveContext(context);
  Modules::Get().RemoveContext(context);
  Memory::Get().RemoveContext(context);
  if (context->primary) GraphMemory::Get().Reset(context->device);
  GiveStackAndHeap(context);
  GiveDriverObjects(context);
  Driver::Get().Change(*context->device, Op::kRemoveContext);
}

constexpr unsigned kKnownFlags = 0xff;

CUresult Create(CUcontext* out, unsigned flags, CUdevice ordinal, unsigned api_version) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr || (flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = NewContext(device, false);
  context->flags = flags;
  context->api_version = api_version;
  std::lock_guard lock(LifeMutex());
  if (CUresult result = Activate(context); result != CUDA_SUCCESS) return result;
  Stack().push_back(context);
  *out = Handle(context);
  return CUDA_SUCCESS;
}

CUresult Attach(CUcontext* out, unsigned flags) {
  Context* context = nullptr;
  if (CUresult error = CurrentContext(&context); error != CUDA_SUCCESS) return error;
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(LifeMutex());
  context->users++;
  *out = Handle(context);
  return CUDA_SUCCESS;
}

// The last user's destroys the context, which has to be current.
CUresult Detach(CUcontext handle) {
  Context* context = nullptr;
  if (CUresult error = CurrentContext(&context); error != CUDA_SUCCESS) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (FromHandle(handle) != context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(LifeMutex());
  if (--context->users > 0) return CUDA_SUCCESS;
  Deactivate(context);
  Stack().pop_back();
  return CUDA_SUCCESS;
}

CUresult Destroy(CUcontext handle) {
  GPUMUX_REQUIRE_INIT();
  Context* context = FromHandle(handle);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr || context->primary || context->base != nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard lock(LifeMutex());
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Deactivate(context);
  if (!Stack().empty() && Stack().back() == context) Stack().pop_back();
  return CUDA_SUCCESS;
}

CUresult Release(CUdevice ordinal) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  return device != nullptr ? ReleasePrimary(device) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult ResetPrimary(CUdevice ordinal) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(LifeMutex());
  // Measured: its green contexts have to go first.
  if (device->primary_count > 0 && !device->primary->green_contexts.empty()) return CUDA_ERROR_NOT_PERMITTED;
  if (device->primary_count > 0) Deactivate(device->primary);
  device->primary_count = 0;
  return CUDA_SUCCESS;
}

CUresult SetPrimaryFlags(CUdevice ordinal, unsigned flags) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(LifeMutex());
  if (device->primary == nullptr) device->primary = NewContext(device, true);
  device->primary->flags = flags;
  return CUDA_SUCCESS;
}

}  // namespace

Context* FromHandle(CUcontext handle) {
  Known& known = AllContexts();
  std::lock_guard lock(known.mutex);
  return known.contexts.contains(handle) ? reinterpret_cast<Context*>(handle) : nullptr;
}

Context* FromGreenHandle(CUgreenCtx handle) {
  if (handle == nullptr) return nullptr;
  Context* context = FromHandle(reinterpret_cast<CUcontext>(reinterpret_cast<uint32_t*>(handle) - 1));
  return context != nullptr && context->base != nullptr ? context : nullptr;
}

Context* CurrentOrNull() { return Stack().empty() ? nullptr : Base(Stack().back()); }

Context* CurrentGreen() {
  return !Stack().empty() && Stack().back()->base != nullptr ? Stack().back() : nullptr;
}

CUresult CurrentContext(Context** context) {
  if (!Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  *context = CurrentOrNull();
  if (*context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!Stack().back()->alive.load(std::memory_order_acquire) ||
      !(*context)->alive.load(std::memory_order_acquire)) {
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  return (*context)->sticky.load(std::memory_order_acquire);
}

CUresult RetainPrimary(Device* device, Context** out) {
  std::lock_guard lock(LifeMutex());
  if (device->primary == nullptr) device->primary = NewContext(device, true);
  device->primary->api_version = 3020;
  if (device->primary_count == 0) {
    if (CUresult result = Activate(device->primary); result != CUDA_SUCCESS) return result;
  }
  ++device->primary_count;
  *out = device->primary;
  return CUDA_SUCCESS;
}

CUresult ReleasePrimary(Device* device) {
  std::lock_guard lock(LifeMutex());
  if (device->primary_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->primary_count == 0) Deactivate(device->primary);
  return CUDA_SUCCESS;
}

Context* AddGreenContext(Context* primary, unsigned sms) {
  Context* green = NewContext(primary->device, false);
  green->api_version = primary->api_version;
  green->base = primary;
  green->sms = sms;
  Engine::Get().AddContext(green);
  std::lock_guard lock(LifeMutex());
  primary->green_contexts.push_back(green);
  green->alive.store(true, std::memory_order_release);
  return green;
}

bool EndGreenContext(Context* green) {
  std::lock_guard lock(LifeMutex());
  if (!green->alive.exchange(false)) return false;
  Engine::Get().RemoveContext(green);
  std::erase(green->base->green_contexts, green);
  return true;
}

GPUMUX_CU cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) {
  return Create(out, flags, device, 3010);
}
GPUMUX_CU cuCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device) {
  return Create(out, flags, device, 3020);
}
GPUMUX_CU cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* affinity, int affinities, unsigned flags,
                         CUdevice device) {
  if (affinities != 0 || affinity != nullptr) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return Create(out, flags, device, 3020);
}
GPUMUX_CU cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned flags, CUdevice device) {
  // Execution affinity and shared graphics contexts have no meaning here.
  if (params != nullptr) {
    struct Params {
      void* affinity;
      int affinities;
      void* graphics;
    };
    const auto* p = reinterpret_cast<const Params*>(params);
    if (p->affinities != 0 || p->graphics != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return Create(out, flags, device, 3020);
}
GPUMUX_CU cuCtxAttach(CUcontext* out, unsigned flags) { return Attach(out, flags); }
GPUMUX_CU cuCtxDetach(CUcontext context) { return Detach(context); }
GPUMUX_CU cuCtxDestroy(CUcontext context) { return Destroy(context); }
GPUMUX_CU cuCtxDestroy_v2(CUcontext context) { return Destroy(context); }

GPUMUX_CU cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice ordinal) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = RetainPrimary(device, &context); result != CUDA_SUCCESS) return result;
  *out = Handle(context);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuDevicePrimaryCtxRelease(CUdevice device) { return Release(device); }
GPUMUX_CU cuDevicePrimaryCtxRelease_v2(CUdevice device) { return Release(device); }
GPUMUX_CU cuDevicePrimaryCtxReset(CUdevice device) { return ResetPrimary(device); }
GPUMUX_CU cuDevicePrimaryCtxReset_v2(CUdevice device) { return ResetPrimary(device); }
GPUMUX_CU cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return SetPrimaryFlags(device, flags);
}
GPUMUX_CU cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  return SetPrimaryFlags(device, flags);
}
GPUMUX_CU cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(LifeMutex());
  *flags = device->primary != nullptr ? device->primary->flags : 0;
  *active = device->primary_count > 0;
  return CUDA_SUCCESS;
}

namespace {

CUresult Push(CUcontext handle) {
  GPUMUX_REQUIRE_INIT();
  Context* context = FromHandle(handle);
  if (context == nullptr) return handle == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (Stack().size() >= kMaxStack) return CUDA_ERROR_INVALID_VALUE;
  Stack().push_back(context);
  return CUDA_SUCCESS;
}

CUresult Pop(CUcontext* out) {
  GPUMUX_REQUIRE_INIT();
  if (Stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = Handle(Stack().back());
  Stack().pop_back();
  return CUDA_SUCCESS;
}

}  // namespace

GPUMUX_CU cuCtxPushCurrent(CUcontext context) { return Push(context); }
GPUMUX_CU cuCtxPushCurrent_v2(CUcontext context) { return Push(context); }
GPUMUX_CU cuCtxPopCurrent(CUcontext* out) { return Pop(out); }
GPUMUX_CU cuCtxPopCurrent_v2(CUcontext* out) { return Pop(out); }

GPUMUX_CU cuCtxSetCurrent(CUcontext handle) {
  GPUMUX_REQUIRE_INIT();
  if (handle == nullptr) {
    if (!Stack().empty()) Stack().pop_back();
    return CUDA_SUCCESS;
  }
  Context* context = FromHandle(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (Stack().empty()) {
    Stack().push_back(context);
  } else {
    Stack().back() = context;
  }
  return CUDA_SUCCESS;
}

GPUMUX_CU cuCtxGetCurrent(CUcontext* out) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = Stack().empty() ? nullptr : Handle(Stack().back());
  return CUDA_SUCCESS;
}

namespace {
CUresult DeviceOf(CUdevice* out, CUcontext handle) {
  GPUMUX_REQUIRE_INIT();
  Context* context = handle != nullptr ? FromHandle(handle) : CurrentOrNull();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *out = context->device->ordinal;
  return CUDA_SUCCESS;
}
}  // namespace
GPUMUX_CU cuCtxGetDevice(CUdevice* out) { return DeviceOf(out, nullptr); }
GPUMUX_CU cuCtxGetDevice_v2(CUdevice* out, CUcontext context) { return DeviceOf(out, context); }

GPUMUX_CU cuCtxGetFlags(unsigned* flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxSetFlags(unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if ((flags & ~kKnownFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxGetId(CUcontext handle, unsigned long long* id) {
  GPUMUX_REQUIRE_INIT();
  Context* context = handle != nullptr ? FromHandle(handle) : Stack().empty() ? nullptr : Stack().back();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  GPUMUX_REQUIRE_INIT();
  Context* context = handle != nullptr ? FromHandle(handle) : CurrentOrNull();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxGetCacheConfig(int* config) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = 0;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxSetCacheConfig(int) {
  GPUMUX_REQUIRE_CONTEXT(context);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuCtxResetPersistingL2Cache() {
  GPUMUX_REQUIRE_CONTEXT(context);
  return CUDA_SUCCESS;
}

namespace {
enum { kPendingLaunches = 4, kL2Granularity = 5, kPersistingL2 = 6 };
}

GPUMUX_CU cuCtxGetLimit(size_t* value, CUlimit limit) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<int>(limit)) {
    case CU_LIMIT_STACK_SIZE:
      *value = context->stack_bytes;
      return CUDA_SUCCESS;
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      *value = context->printf_bytes;
      return CUDA_SUCCESS;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      *value = context->heap_bytes;
      return CUDA_SUCCESS;
    case kPendingLaunches:
      *value = context->pending_launches;
      return CUDA_SUCCESS;
    case kL2Granularity:
      *value = context->l2_granularity;
      return CUDA_SUCCESS;
    case kPersistingL2:
      *value = context->persisting_l2;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
}

GPUMUX_CU cuCtxSetLimit(CUlimit limit, size_t value) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  std::lock_guard lock(LifeMutex());
  switch (static_cast<int>(limit)) {
    case CU_LIMIT_STACK_SIZE: {
      if (value >= 512 * 1024) return CUDA_ERROR_INVALID_VALUE;
      const uint64_t rounded = sim::RoundUp(std::max<size_t>(value, 16), 16);
      return SetStack(context, rounded) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      context->printf_bytes = value;
      return CUDA_SUCCESS;
    case CU_LIMIT_MALLOC_HEAP_SIZE:
      // Taken with the first code that allocates on the device; fixed from then on.
      if (context->heap_taken > 0) return CUDA_ERROR_INVALID_VALUE;
      // More than there is becomes the most there is: a program reads it back.
      if (const auto memory = Driver::Get().QueryMemory(*context->device)) {
        value = std::min<size_t>(value, memory->free / sim::kPageBytes * sim::kPageBytes);
      }
      context->heap_bytes = value;
      return CUDA_SUCCESS;
    // None of these takes memory.
    case kPendingLaunches:
      context->pending_launches = value;
      return CUDA_SUCCESS;
    case kL2Granularity:
      if (value > 128) return CUDA_ERROR_INVALID_VALUE;
      context->l2_granularity = value;
      return CUDA_SUCCESS;
    case kPersistingL2:
      context->persisting_l2 = value;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
  }
}

namespace {
CUresult Synchronize(CUcontext handle) {
  Context* context = nullptr;
  if (handle == nullptr) {
    if (CUresult error = CurrentContext(&context); error != CUDA_SUCCESS) return error;
    context = Stack().back();  // a green one waits for its own work
  } else {
    GPUMUX_REQUIRE_INIT();
    context = FromHandle(handle);
    if (context == nullptr || !context->alive) return CUDA_ERROR_INVALID_CONTEXT;
    if (CUresult error = Base(context)->sticky; error != CUDA_SUCCESS) return error;
  }
  if (CUresult captured = Captures::ForbidContext(context); captured != CUDA_SUCCESS) return captured;
  const CUresult result = Engine::Get().SynchronizeContext(context);
  Memory::Get().OnSynchronize(context->device);
  return result;
}
}  // namespace
GPUMUX_CU cuCtxSynchronize() { return Synchronize(nullptr); }
GPUMUX_CU cuCtxSynchronize_v2(CUcontext context) { return Synchronize(context); }

}  // namespace gpumux::softgpu
