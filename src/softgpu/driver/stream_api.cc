// SPDX-License-Identifier: Apache-2.0
//
// Streams and events.
#include <algorithm>
#include <utility>

#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/driver_objects.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/shared_event.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult Create(CUstream* out, unsigned flags, int priority) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!AddStream(context)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = reinterpret_cast<CUstream>(Engine::Get().CreateStream(
      CurrentGreen() != nullptr ? CurrentGreen() : context, flags, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

CUresult Destroy(CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (Captures::Any()) {
    GPUMUX_REQUIRE_STREAM(stream, context, handle);
    Captures::Get().RemoveStream(stream);
  }
  Stream* stream = Engine::Get().FindStream(context, handle);
  if (stream != nullptr && stream->green != nullptr && !stream->green->alive)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  Context* owner = stream != nullptr ? stream->context : nullptr;
  const CUresult result = Engine::Get().DestroyStream(handle);
  if (result == CUDA_SUCCESS && owner != nullptr) RemoveStream(owner);
  return result;
}

CUresult Synchronize(CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (auto captured = Captures::Forbid(stream)) return *captured;
  GPUMUX_REQUIRE_NO_CAPTURE();
  Device* device = stream->context->device;
  const CUresult result = Engine::Get().SynchronizeStream(stream);
  Memory::Get().OnSynchronize(device);
  return result;
}

CUresult Query(CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (auto captured = Captures::Forbid(stream)) return *captured;
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Engine::Get().QueryStream(stream);
}

template <typename T, typename Get>
CUresult Read(CUstream handle, T* out, Get get) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = get(*stream);
  return CUDA_SUCCESS;
}

// Of a wait or a record: an event node rather than an edge of the graph.
constexpr unsigned kExternal = 1;

CUresult WaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if ((flags & ~1u) != 0) return CUDA_ERROR_INVALID_VALUE;
  Event* event = Engine::Get().FindEvent(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (Captures::Any() || event->was_captured) {
    if (auto captured = Captures::Get().WaitEvent(stream, event, (flags & kExternal) != 0)) return *captured;
  }
  Engine::Get().Wait(stream, event);
  return CUDA_SUCCESS;
}

CUresult RecordEvent(CUevent event_handle, CUstream handle, unsigned flags = 0) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  Event* event = Engine::Get().FindEvent(event_handle);
  if (event == nullptr || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (Captures::Any() || event->was_captured) {
    if (auto captured = Captures::Get().RecordEvent(event, stream, (flags & kExternal) != 0))
      return *captured;
  }
  Engine::Get().Record(event, stream);
  return CUDA_SUCCESS;
}

int Priority(const Stream& stream) { return stream.priority; }
unsigned Flags(const Stream& stream) { return stream.flags; }
unsigned long long Id(const Stream& stream) { return stream.id; }
CUcontext ContextOf(const Stream& stream) { return Handle(stream.owner()); }
CUcontext BaseOf(const Stream& stream) { return Handle(stream.context); }
CUgreenCtx GreenOf(const Stream& stream) { return GreenHandle(stream.green); }

CUresult ReadBoth(CUstream stream, CUcontext* out, CUgreenCtx* green) {
  if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = Read(stream, out, BaseOf);
  return result == CUDA_SUCCESS ? Read(stream, green, GreenOf) : result;
}
CUdevice DeviceOf(const Stream& stream) { return stream.context->device->ordinal; }

}  // namespace

GPUMUX_CU cuStreamCreate(CUstream* out, unsigned flags) { return Create(out, flags, 0); }
GPUMUX_CU cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return Create(out, flags, priority);
}
GPUMUX_CU cuStreamDestroy(CUstream stream) { return Destroy(stream); }
GPUMUX_CU cuStreamDestroy_v2(CUstream stream) { return Destroy(stream); }
GPUMUX_CU cuStreamSynchronize(CUstream stream) { return Synchronize(stream); }
GPUMUX_CU cuStreamSynchronize_ptsz(CUstream stream) { return Synchronize(PerThread(stream)); }
GPUMUX_CU cuStreamQuery(CUstream stream) { return Query(stream); }
GPUMUX_CU cuStreamQuery_ptsz(CUstream stream) { return Query(PerThread(stream)); }
GPUMUX_CU cuStreamGetPriority(CUstream stream, int* out) { return Read(stream, out, Priority); }
GPUMUX_CU cuStreamGetPriority_ptsz(CUstream stream, int* out) {
  return Read(PerThread(stream), out, Priority);
}
GPUMUX_CU cuStreamGetFlags(CUstream stream, unsigned* out) { return Read(stream, out, Flags); }
GPUMUX_CU cuStreamGetFlags_ptsz(CUstream stream, unsigned* out) {
  return Read(PerThread(stream), out, Flags);
}
GPUMUX_CU cuStreamGetId(CUstream stream, unsigned long long* out) { return Read(stream, out, Id); }
GPUMUX_CU cuStreamGetId_ptsz(CUstream stream, unsigned long long* out) {
  return Read(PerThread(stream), out, Id);
}
GPUMUX_CU cuStreamGetCtx(CUstream stream, CUcontext* out) { return Read(stream, out, ContextOf); }
GPUMUX_CU cuStreamGetCtx_ptsz(CUstream stream, CUcontext* out) {
  return Read(PerThread(stream), out, ContextOf);
}
GPUMUX_CU cuStreamGetCtx_v2(CUstream stream, CUcontext* out, CUgreenCtx* green) {
  return ReadBoth(stream, out, green);
}
GPUMUX_CU cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* out, CUgreenCtx* green) {
  return ReadBoth(PerThread(stream), out, green);
}
GPUMUX_CU cuStreamGetGreenCtx(CUstream stream, CUgreenCtx* out) { return Read(stream, out, GreenOf); }
GPUMUX_CU cuStreamGetDevice(CUstream stream, CUdevice* out) { return Read(stream, out, DeviceOf); }
GPUMUX_CU cuStreamGetDevice_ptsz(CUstream stream, CUdevice* out) {
  return Read(PerThread(stream), out, DeviceOf);
}
GPUMUX_CU cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return WaitEvent(stream, event, flags);
}
GPUMUX_CU cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return WaitEvent(PerThread(stream), event, flags);
}

// --- events

GPUMUX_CU cuEventCreate(CUevent* out, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  // One that other processes use tells no time.
  std::shared_ptr<SharedEvent> shared;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    if ((flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
    shared = SharedEvent::Create();
    if (shared == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Event* event = Engine::Get().CreateEvent(context, flags);
  event->shared = std::move(shared);
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuEventDestroy_v2(CUevent event) {
  GPUMUX_REQUIRE_INIT();
  return Engine::Get().DestroyEvent(event);
}
GPUMUX_CU cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }
GPUMUX_CU cuEventRecord(CUevent event, CUstream stream) { return RecordEvent(event, stream); }
GPUMUX_CU cuEventRecord_ptsz(CUevent event, CUstream stream) { return RecordEvent(event, PerThread(stream)); }
GPUMUX_CU cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return (flags & ~1u) != 0 ? CUDA_ERROR_INVALID_VALUE : RecordEvent(event, stream, flags);
}
GPUMUX_CU cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
  return (flags & ~1u) != 0 ? CUDA_ERROR_INVALID_VALUE : RecordEvent(event, PerThread(stream), flags);
}

#define REQUIRE_EVENT(name, handle)              \
  GPUMUX_REQUIRE_INIT();                         \
  Event* name = Engine::Get().FindEvent(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

namespace {
CUresult CheckCaptured(Event* event) {
  return Captures::Any() || event->was_captured ? Captures::Get().CheckEvent(event) : CUDA_SUCCESS;
}
}  // namespace

GPUMUX_CU cuEventQuery(CUevent handle) {
  REQUIRE_EVENT(event, handle);
  if (CUresult captured = CheckCaptured(event); captured != CUDA_SUCCESS) return captured;
  return Engine::Get().QueryEvent(event);
}
GPUMUX_CU cuEventSynchronize(CUevent handle) {
  REQUIRE_EVENT(event, handle);
  if (CUresult captured = CheckCaptured(event); captured != CUDA_SUCCESS) return captured;
  Device* device = event->context->device;
  const CUresult result = Engine::Get().SynchronizeEvent(event);
  Memory::Get().OnSynchronize(device);
  return result;
}
GPUMUX_CU cuEventElapsedTime(float* ms, CUevent first, CUevent second) {
  REQUIRE_EVENT(start, first);
  Event* end = Engine::Get().FindEvent(second);
  if (end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (ms == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Engine::Get().Elapsed(start, end, ms);
}
GPUMUX_CU cuEventElapsedTime_v2(float* ms, CUevent first, CUevent second) {
  return cuEventElapsedTime(ms, first, second);
}

}  // namespace gpumux::softgpu
