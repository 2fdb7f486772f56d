// SPDX-License-Identifier: Apache-2.0
//
// Launching kernels and host functions.
#include <vector>

#include "softgpu/driver/api.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult LaunchKernel(const KernelNodeParams& params, bool cooperative, CUstream stream_handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  KernelOperation operation;
  operation.cooperative = cooperative;
  if (CUresult error = ReadKernel(context, params, &operation); error != CUDA_SUCCESS) return error;
  GPUMUX_REQUIRE_STREAM(stream, context, stream_handle);
  if (auto captured = Captures::Take(stream, [&] { return std::move(operation); })) return *captured;
  WorkPtr work;
  if (CUresult error = PrepareKernel(context, operation, &work); error != CUDA_SUCCESS) return error;
  Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

// The attributes of a launch that change what is allowed; the others are hints
// about speed. Version 13.0 knows those up to 16.
CUresult LaunchEx(const CUlaunchConfig* config, CUfunction function, CUstream stream, void** params,
                  void** extra) {
  constexpr int kCooperative = 2, kLast = 16;
  bool cooperative = false;
  if (config->numAttrs > 0 && config->attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id < 0 || attribute.id > kLast) return CUDA_ERROR_INVALID_VALUE;
    if (attribute.id == kCooperative) cooperative = *reinterpret_cast<const int*>(attribute.value.pad) != 0;
  }
  return LaunchKernel(
      {function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
       config->blockDimZ, config->sharedMemBytes, params, extra, nullptr, nullptr},
      cooperative, stream);
}

CUresult HostFunc(CUstream handle, HostFunction function, void* data) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  const HostOperation operation{{function, data}};
  if (auto captured = Captures::Take(stream, [&] { return operation; })) return *captured;
  Engine::Get().Enqueue(stream, PrepareHost(operation));
  return CUDA_SUCCESS;
}

using StreamCallback = void (*)(CUstream, CUresult, void*);

CUresult AddCallback(CUstream handle, StreamCallback callback, void* data, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  GPUMUX_REQUIRE_STREAM(stream, context, handle);
  if (auto captured = Captures::Forbid(stream)) return *captured;
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kCall;
  work->effect = [=] {
    callback(handle, CUDA_SUCCESS, data);
    return true;
  };
  Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

// CUDA_LAUNCH_PARAMS.
struct LaunchParams {
  CUfunction function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  CUstream stream;
  void** params;
};
static_assert(sizeof(LaunchParams) == 56);

}  // namespace

GPUMUX_CU cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                         unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return LaunchKernel({f, gx, gy, gz, bx, by, bz, shared, params, extra, nullptr, nullptr}, false, stream);
}
GPUMUX_CU cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return LaunchKernel({f, gx, gy, gz, bx, by, bz, shared, params, extra, nullptr, nullptr}, false,
                      PerThread(stream));
}
GPUMUX_CU cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                    unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                    void** params) {
  return LaunchKernel({f, gx, gy, gz, bx, by, bz, shared, params, nullptr, nullptr, nullptr}, true, stream);
}
GPUMUX_CU cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                         unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                         void** params) {
  return LaunchKernel({f, gx, gy, gz, bx, by, bz, shared, params, nullptr, nullptr, nullptr}, true,
                      PerThread(stream));
}
GPUMUX_CU cuLaunchCooperativeKernelMultiDevice(LaunchParams* list, unsigned count, unsigned flags) {
  GPUMUX_REQUIRE_CONTEXT(context);
  // One device a launch, as the driver wants it: with the GPUs of one context
  // that is one launch.
  if (list == nullptr || count == 0 || (flags & ~3u) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (count > 1) return CUDA_ERROR_NOT_SUPPORTED;
  const LaunchParams& p = list[0];
  if (p.stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return LaunchKernel({p.function, p.grid[0], p.grid[1], p.grid[2], p.block[0], p.block[1], p.block[2],
                       p.shared_bytes, p.params, nullptr, nullptr, nullptr},
                      true, p.stream);
}
GPUMUX_CU cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return LaunchEx(config, f, config->hStream, params, extra);
}
GPUMUX_CU cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return LaunchEx(config, f, PerThread(config->hStream), params, extra);
}
GPUMUX_CU cuLaunchHostFunc(CUstream stream, HostFunction f, void* data) { return HostFunc(stream, f, data); }
GPUMUX_CU cuLaunchHostFunc_ptsz(CUstream stream, HostFunction f, void* data) {
  return HostFunc(PerThread(stream), f, data);
}
GPUMUX_CU cuStreamAddCallback(CUstream stream, StreamCallback callback, void* data, unsigned flags) {
  return AddCallback(stream, callback, data, flags);
}
GPUMUX_CU cuStreamAddCallback_ptsz(CUstream stream, StreamCallback callback, void* data, unsigned flags) {
  return AddCallback(PerThread(stream), callback, data, flags);
}

}  // namespace gpumux::softgpu
