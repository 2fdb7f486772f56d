// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "softgpu/driver/context.h"
#include "softgpu/driver/engine.h"

// Declares `name`, the stream that `handle` means to `context`, or returns.
#define GPUMUX_REQUIRE_STREAM(name, context, handle)                                              \
  ::gpumux::softgpu::Stream* name = ::gpumux::softgpu::Engine::Get().FindStream(context, handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE;                                          \
  if (name->green != nullptr && !name->green->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED

namespace gpumux::softgpu {

// The stream that the _ptsz and _ptds twins of an entry point mean by none.
inline cuda::CUstream PerThread(cuda::CUstream stream) {
  return stream != nullptr ? stream : cuda::kPerThreadStream;
}

}  // namespace gpumux::softgpu
