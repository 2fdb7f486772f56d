// SPDX-License-Identifier: Apache-2.0
//
// Memory and events between processes.
#include <unistd.h>

#include <cstring>

#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/shared_event.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {
// CUipcMemHandle, CUipcEventHandle, CUmemPoolPtrExportData.
struct Bytes64 {
  char bytes[64];
};
}  // namespace

GPUMUX_CU cuIpcGetMemHandle(Bytes64* out, CUdeviceptr pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  return Memory::Get().GetIpcHandle(pointer, out);
}

namespace {
CUresult Open(CUdeviceptr* out, const Bytes64& handle, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  constexpr unsigned kLazyPeerAccess = 1;
  if (out == nullptr || flags != kLazyPeerAccess) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().OpenIpcHandle(context, &handle, out);
}
}  // namespace
GPUMUX_CU cuIpcOpenMemHandle(CUdeviceptr* out, Bytes64 handle, unsigned flags) {
  return Open(out, handle, flags);
}
GPUMUX_CU cuIpcOpenMemHandle_v2(CUdeviceptr* out, Bytes64 handle, unsigned flags) {
  return Open(out, handle, flags);
}
GPUMUX_CU cuIpcCloseMemHandle(CUdeviceptr pointer) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_NO_CAPTURE();
  // As a free: what is under way may still use it.
  if (CUresult error = Engine::Get().SynchronizeContext(context); error != CUDA_SUCCESS) return error;
  return Memory::Get().CloseIpcHandle(pointer);
}

// --- events

namespace {
struct EventToken {
  uint64_t magic, key, client;
  uint64_t unused[5];
};
static_assert(sizeof(EventToken) == sizeof(Bytes64));
constexpr uint64_t kIpcEvent = 0x67706d75782d6531;
}  // namespace

GPUMUX_CU cuIpcGetEventHandle(Bytes64* out, CUevent handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  Event* event = Engine::Get().FindEvent(handle);
  if (event == nullptr || event->shared == nullptr || event->shared->imported())
    return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (event->shared->key() == 0) {
    const auto reply = Driver::Get().AskShare(Op::kShare, context->device, 0, 0, event->shared->file());
    if (!reply) return CUDA_ERROR_OUT_OF_MEMORY;
    event->shared->set_key(reply->values[0]);
  }
  const EventToken token = {kIpcEvent, event->shared->key(), Driver::Get().client(), {}};
  memcpy(out, &token, sizeof(token));
  return CUDA_SUCCESS;
}
GPUMUX_CU cuIpcOpenEventHandle(CUevent* out, Bytes64 handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  EventToken token;
  memcpy(&token, &handle, sizeof(token));
  if (out == nullptr || token.magic != kIpcEvent) return CUDA_ERROR_INVALID_VALUE;
  if (token.client == Driver::Get().client()) return CUDA_ERROR_INVALID_CONTEXT;
  int file = -1;
  const auto attached = Driver::Get().AskShare(Op::kAttach, nullptr, 0, token.key, -1, &file);
  if (!attached || file < 0) return CUDA_ERROR_INVALID_VALUE;
  // Nothing is shared between GPU instances.
  const uint64_t of = attached->values[2];
  if (of >= kFirstPlace && Driver::Get().FindDeviceOfGpu(of) == nullptr) {
    close(file);
    Driver::Get().AskShare(Op::kDetach, nullptr, 0, token.key);
    return CUDA_ERROR_MAP_FAILED;
  }
  auto shared = SharedEvent::Open(file, token.key);
  if (shared == nullptr) {
    Driver::Get().AskShare(Op::kDetach, nullptr, 0, token.key);
    return CUDA_ERROR_INVALID_VALUE;
  }
  Event* event = Engine::Get().CreateEvent(context, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
  event->shared = std::move(shared);
  *out = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}

// --- by file descriptor

GPUMUX_CU cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, int type,
                                       unsigned long long flags) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return Memory::Get().ExportHandle(handle, static_cast<int*>(out));
}
GPUMUX_CU cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* descriptor, int type) {
  GPUMUX_REQUIRE_INIT();
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return Memory::Get().ImportHandle(static_cast<int>(reinterpret_cast<intptr_t>(descriptor)), out);
}

GPUMUX_CU cuMemPoolExportToShareableHandle(void* out, CUmemoryPool handle, int type,
                                           unsigned long long flags) {
  GPUMUX_REQUIRE_INIT();
  Pool* pool = Memory::Get().FindPool(handle);
  if (pool == nullptr || out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return Memory::Get().ExportPool(pool, static_cast<int*>(out));
}
GPUMUX_CU cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void* descriptor, int type,
                                             unsigned long long flags) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  Pool* pool = nullptr;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  if (CUresult error = Memory::Get().ImportPool(fd, &pool); error != CUDA_SUCCESS) return error;
  *out = reinterpret_cast<CUmemoryPool>(pool);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuMemPoolExportPointer(Bytes64* out, CUdeviceptr pointer) {
  GPUMUX_REQUIRE_INIT();
  return Memory::Get().ExportPointer(pointer, out);
}
GPUMUX_CU cuMemPoolImportPointer(CUdeviceptr* out, CUmemoryPool handle, const Bytes64* data) {
  GPUMUX_REQUIRE_INIT();
  Pool* pool = Memory::Get().FindPool(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Memory::Get().ImportPointer(pool, data, out);
}

}  // namespace gpumux::softgpu
