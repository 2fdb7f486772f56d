// SPDX-License-Identifier: Apache-2.0
//
// Streams and events. Capture does not exist here yet: its queries say so, its
// other entry points answer CUDA_ERROR_NOT_SUPPORTED.
#include <algorithm>
#include <utility>

#include "softgpu/driver/api.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult Create(CUstream* out, unsigned flags, int priority) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUstream>(Engine::Get().CreateStream(context, flags, std::clamp(priority, -5, 0)));
  return CUDA_SUCCESS;
}

CUresult Destroy(CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  return Engine::Get().DestroyStream(handle);
}

CUresult Synchronize(CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  Device* device = stream->context->device;
  const CUresult result = Engine::Get().SynchronizeStream(stream);
  Memory::Get().OnSynchronize(device);
  return result;
}

CUresult Query(CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
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

CUresult WaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if ((flags & ~1u) != 0) return CUDA_ERROR_INVALID_VALUE;
  Event* event = Engine::Get().FindEvent(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Engine::Get().Wait(stream, event);
  return CUDA_SUCCESS;
}

CUresult RecordEvent(CUevent event_handle, CUstream handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  Event* event = Engine::Get().FindEvent(event_handle);
  if (event == nullptr || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  Engine::Get().Record(event, stream);
  return CUDA_SUCCESS;
}

int Priority(const Stream& stream) { return stream.priority; }
unsigned Flags(const Stream& stream) { return stream.flags; }
unsigned long long Id(const Stream& stream) { return stream.id; }
CUcontext ContextOf(const Stream& stream) { return Handle(stream.context); }
CUdevice DeviceOf(const Stream& stream) { return stream.context->device->ordinal; }
CUstreamCaptureStatus NotCapturing(const Stream&) { return CU_STREAM_CAPTURE_STATUS_NONE; }

// The first two of what cuStreamGetCaptureInfo reports; the rest only matters
// while a stream captures.
CUresult CaptureInfo(CUstream stream, CUstreamCaptureStatus* status) {
  return Read(stream, status, NotCapturing);
}

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
  if (green != nullptr) *green = nullptr;
  return Read(stream, out, ContextOf);
}
GPUMUX_CU cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* out, CUgreenCtx* green) {
  if (green != nullptr) *green = nullptr;
  return Read(PerThread(stream), out, ContextOf);
}
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

GPUMUX_CU cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* out) {
  return CaptureInfo(stream, out);
}
GPUMUX_CU cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* out) {
  return CaptureInfo(PerThread(stream), out);
}
GPUMUX_CU cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* out, cuuint64_t*) {
  return CaptureInfo(stream, out);
}
GPUMUX_CU cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus* out, cuuint64_t*) {
  return CaptureInfo(PerThread(stream), out);
}
GPUMUX_CU cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* out, cuuint64_t*, CUgraph*,
                                    const CUgraphNode**, size_t*) {
  return CaptureInfo(stream, out);
}
GPUMUX_CU cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* out, cuuint64_t*, CUgraph*,
                                         const CUgraphNode**, size_t*) {
  return CaptureInfo(PerThread(stream), out);
}
GPUMUX_CU cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* out, cuuint64_t*, CUgraph*,
                                    const CUgraphNode**, const void**, size_t*) {
  return CaptureInfo(stream, out);
}
GPUMUX_CU cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* out, cuuint64_t*, CUgraph*,
                                         const CUgraphNode**, const void**, size_t*) {
  return CaptureInfo(PerThread(stream), out);
}

GPUMUX_CU cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  GPUMUX_REQUIRE_INIT();
  static thread_local CUstreamCaptureMode current = CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(current, *mode);
  return CUDA_SUCCESS;
}

// --- events

GPUMUX_CU cuEventCreate(CUevent* out, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr || (flags & ~7u) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0) {
    return (flags & CU_EVENT_DISABLE_TIMING) != 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
  *out = reinterpret_cast<CUevent>(Engine::Get().CreateEvent(context, flags));
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
  return (flags & ~1u) != 0 ? CUDA_ERROR_INVALID_VALUE : RecordEvent(event, stream);
}
GPUMUX_CU cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
  return (flags & ~1u) != 0 ? CUDA_ERROR_INVALID_VALUE : RecordEvent(event, PerThread(stream));
}

#define REQUIRE_EVENT(name, handle)              \
  GPUMUX_REQUIRE_INIT();                         \
  Event* name = Engine::Get().FindEvent(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

GPUMUX_CU cuEventQuery(CUevent handle) {
  REQUIRE_EVENT(event, handle);
  return Engine::Get().QueryEvent(event);
}
GPUMUX_CU cuEventSynchronize(CUevent handle) {
  REQUIRE_EVENT(event, handle);
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
