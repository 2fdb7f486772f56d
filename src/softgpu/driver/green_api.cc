// SPDX-License-Identifier: Apache-2.0
//
// Green contexts: a primary context with some of its SMs. Memory and order are as
// a program finds them on a GPU; kernels run as if they had all SMs.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_set>

#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/driver_objects.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/resources.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// What a green context is to have. Nothing frees one in this version.
struct Descriptor {
  Device* device;
  unsigned sms;
};
struct Known {
  std::mutex mutex;
  std::unordered_set<const void*> descriptors;
};
Known& AllDescriptors() {
  static Known* known = new Known;
  return *known;
}

const Descriptor* FromHandle(CUdevResourceDesc handle) {
  Known& known = AllDescriptors();
  std::lock_guard lock(known.mutex);
  return known.descriptors.contains(handle) ? reinterpret_cast<const Descriptor*>(handle) : nullptr;
}

// The fewest SMs of a part, and what their number is a multiple of, as NVIDIA's
// header states them by compute capability.
struct Grain {
  unsigned least, step;
};
Grain GrainOf(const Device& device) {
  if (device.description.major >= 9) return {8, 8};
  return device.description.major == 8 ? Grain{4, 2} : Grain{2, 2};
}

constexpr unsigned kIgnoreCoscheduling = 1, kMaxPotentialClusterSize = 2;
constexpr unsigned kDefaultStream = 1;

Resource MakeSms(const Device& device, unsigned sms, uint64_t split) {
  const Grain grain = GrainOf(device);
  Resource resource = {};
  resource.type = sms > 0 ? kSmResource : kInvalidResource;
  resource.device = device.ordinal;
  resource.split = split;
  resource.sms = sms;
  resource.min_sms = grain.least;
  resource.alignment = grain.step;
  return resource;
}

CUresult Give(const Device& device, unsigned sms, Resource* out, int type) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != kSmResource) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *out = MakeSms(device, sms, 0);
  return CUDA_SUCCESS;
}

unsigned SmsOf(const Device& device) { return static_cast<unsigned>(device.description.sms); }
unsigned SmsOf(const Context& context) {
  return context.base != nullptr ? context.sms : SmsOf(*context.device);
}

// Null, and why.
CUresult FindGreen(CUgreenCtx handle, Context** out) {
  if (!Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  *out = FromGreenHandle(handle);
  if (*out == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

#define REQUIRE_GREEN(name, handle) \
  Context* name = nullptr;          \
  if (CUresult error = FindGreen(handle, &name); error != CUDA_SUCCESS) return error

CUresult Record(Context* context, CUevent handle) {
  Event* event = Engine::Get().FindEvent(handle);
  if (event == nullptr || event->context != Base(context)) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult captured = Captures::ForbidContext(context); captured != CUDA_SUCCESS) return captured;
  Engine::Get().RecordAll(event, context);
  return CUDA_SUCCESS;
}

CUresult Wait(Context* context, CUevent handle) {
  Event* event = Engine::Get().FindEvent(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult captured = Captures::ForbidContext(context); captured != CUDA_SUCCESS) return captured;
  Engine::Get().WaitAll(context, event);
  return CUDA_SUCCESS;
}

}  // namespace

// --- resources

GPUMUX_CU cuDeviceGetDevResource(CUdevice ordinal, Resource* out, int type) {
  GPUMUX_REQUIRE_INIT();
  const Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return Give(*device, SmsOf(*device), out, type);
}
GPUMUX_CU cuCtxGetDevResource(CUcontext handle, Resource* out, int type) {
  GPUMUX_REQUIRE_INIT();
  const Context* context = FromHandle(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return Give(*context->device, SmsOf(*context), out, type);
}
GPUMUX_CU cuGreenCtxGetDevResource(CUgreenCtx handle, Resource* out, int type) {
  REQUIRE_GREEN(green, handle);
  return Give(*green->device, green->sms, out, type);
}

GPUMUX_CU cuDevSmResourceSplitByCount(Resource* result, unsigned* groups, const Resource* input,
                                      Resource* remaining, unsigned flags, unsigned least) {
  GPUMUX_REQUIRE_INIT();
  if (groups == nullptr || input == nullptr ||
      (flags & ~(kIgnoreCoscheduling | kMaxPotentialClusterSize)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (input->type != kSmResource) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  const Device* device = Driver::Get().FindDevice(input->device);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (least > input->sms || (result != nullptr && *groups == 0)) return CUDA_ERROR_INVALID_VALUE;
  // A part becomes splittable by the green context that it is given to.
  if (input->split != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  Grain grain = GrainOf(*device);
  if ((flags & kIgnoreCoscheduling) != 0) grain = {2, 2};
  const unsigned each = std::max(grain.least, (least + grain.step - 1) / grain.step * grain.step);
  const unsigned fit = input->sms / each;
  if (fit == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  *groups = result != nullptr ? std::min(*groups, fit) : fit;
  if (result == nullptr) return CUDA_SUCCESS;
  static std::atomic<uint64_t> next_split{1};
  const uint64_t split = next_split++;
  std::fill_n(result, *groups, MakeSms(*device, each, split));
  if (remaining != nullptr) *remaining = MakeSms(*device, input->sms - *groups * each, split);
  return CUDA_SUCCESS;
}

GPUMUX_CU cuDevResourceGenerateDesc(CUdevResourceDesc* out, const Resource* resources, unsigned count) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  unsigned sms = 0;
  for (unsigned i = 0; i < count; ++i) {
    const Resource& r = resources[i];
    if (r.type != kSmResource) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const bool together = r.device == resources->device && r.split == resources->split && r.split != 0;
    if (count > 1 && !together) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    sms += r.sms;
  }
  Device* device = Driver::Get().FindDevice(resources->device);
  if (device == nullptr || sms > SmsOf(*device)) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  auto* descriptor = new Descriptor{device, sms};
  Known& known = AllDescriptors();
  std::lock_guard lock(known.mutex);
  known.descriptors.insert(descriptor);
  *out = reinterpret_cast<CUdevResourceDesc>(descriptor);
  return CUDA_SUCCESS;
}

// --- life

GPUMUX_CU cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc handle, CUdevice ordinal, unsigned flags) {
  GPUMUX_REQUIRE_INIT();
  Device* device = Driver::Get().FindDevice(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const Descriptor* descriptor = FromHandle(handle);
  // Without a description it has all SMs.
  const unsigned sms = handle == nullptr ? SmsOf(*device) : descriptor != nullptr ? descriptor->sms : 0;
  if (out == nullptr || sms == 0 || (descriptor != nullptr && descriptor->device != device) ||
      flags != kDefaultStream)
    return CUDA_ERROR_INVALID_VALUE;
  Context* primary = nullptr;
  if (CUresult result = RetainPrimary(device, &primary); result != CUDA_SUCCESS) return result;
  if (!AddGreenMemory(primary, sms)) {
    ReleasePrimary(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = GreenHandle(AddGreenContext(primary, sms));
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGreenCtxDestroy(CUgreenCtx handle) {
  REQUIRE_GREEN(green, handle);
  if (!EndGreenContext(green)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  ReleasePrimary(green->device);
  return CUDA_SUCCESS;
}

GPUMUX_CU cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  REQUIRE_GREEN(green, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = Handle(green);
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  GPUMUX_REQUIRE_INIT();
  Context* green = CurrentGreen();
  if (handle != nullptr || green == nullptr) {
    if (CUresult error = FindGreen(handle, &green); error != CUDA_SUCCESS) return error;
  }
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = green->id;
  return CUDA_SUCCESS;
}

// --- streams and events

GPUMUX_CU cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned flags, int priority) {
  REQUIRE_GREEN(green, handle);
  if (out == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = green->base->sticky; error != CUDA_SUCCESS) return error;
  if (!AddStream(green->base)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUstream>(Engine::Get().CreateStream(green, flags, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  REQUIRE_GREEN(green, handle);
  return Record(green, event);
}
GPUMUX_CU cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  REQUIRE_GREEN(green, handle);
  return Wait(green, event);
}

#define REQUIRE_ALIVE(name, handle)                       \
  GPUMUX_REQUIRE_INIT();                                  \
  Context* name = FromHandle(handle);                     \
  if (name == nullptr) return CUDA_ERROR_INVALID_CONTEXT; \
  if (!name->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED

GPUMUX_CU cuCtxRecordEvent(CUcontext handle, CUevent event) {
  REQUIRE_ALIVE(context, handle);
  return Record(context, event);
}
GPUMUX_CU cuCtxWaitEvent(CUcontext handle, CUevent event) {
  REQUIRE_ALIVE(context, handle);
  return Wait(context, event);
}

}  // namespace gpumux::softgpu
