// SPDX-License-Identifier: Apache-2.0
//
// Launching kernels and host functions.
#include <cstring>

#include "softgpu/driver/api.h"
#include "softgpu/driver/kernels.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/stack.h"
#include "softgpu/driver/streams.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

struct Shape {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared = 0;
};

// Whether the module declares the kernel with the parameters that its name
// stands for; another program's `fill` is not ours.
bool Matches(const PtxModule::Kernel& kernel, const std::vector<uint64_t>& sizes) {
  if (kernel.parameters.size() != sizes.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (kernel.parameters[i].size != sizes[i]) return false;
  }
  return true;
}

// The arguments' bytes, from either way to pass them.
CUresult ReadArguments(const PtxModule::Kernel& kernel, void** params, void** extra,
                       std::vector<uint64_t>* out) {
  const char* buffer = nullptr;
  uint64_t buffer_bytes = 0;
  if (params == nullptr && extra != nullptr) {
    constexpr uintptr_t kEnd = 0, kPointer = 1, kSize = 2;
    for (size_t i = 0; reinterpret_cast<uintptr_t>(extra[i]) != kEnd; i += 2) {
      switch (reinterpret_cast<uintptr_t>(extra[i])) {
        case kPointer:
          buffer = static_cast<const char*>(extra[i + 1]);
          break;
        case kSize:
          buffer_bytes = *static_cast<const size_t*>(extra[i + 1]);
          break;
        default:
          return CUDA_ERROR_INVALID_VALUE;
      }
    }
  }
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    const auto& parameter = kernel.parameters[i];
    uint64_t value = 0;
    if (params != nullptr) {
      if (params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      memcpy(&value, params[i], parameter.size);
    } else {
      if (buffer == nullptr || parameter.offset + parameter.size > buffer_bytes)
        return CUDA_ERROR_INVALID_VALUE;
      memcpy(&value, buffer + parameter.offset, parameter.size);
    }
    out->push_back(value);
  }
  return CUDA_SUCCESS;
}

CUresult LaunchKernel(CUfunction handle, const Shape& shape, CUstream stream_handle, void** params,
                      void** extra) {
  GPUMUX_REQUIRE_CONTEXT(context);
  Function* function = Modules::Get().FindFunction(context, handle);
  if (function == nullptr || function->module->context != context) return CUDA_ERROR_INVALID_HANDLE;
  GPUMUX_REQUIRE_STREAM(stream, context, stream_handle);
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t threads = static_cast<uint64_t>(shape.block[0]) * shape.block[1] * shape.block[2];
  const uint64_t blocks = static_cast<uint64_t>(shape.grid[0]) * shape.grid[1] * shape.grid[2];
  if (threads == 0 || threads > 1024 || shape.block[2] > 64 || blocks == 0 || shape.grid[0] > 2147483647 ||
      shape.grid[1] > 65535 || shape.grid[2] > 65535 ||
      shape.shared > static_cast<unsigned>(function->max_dynamic_shared)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const PtxModule::Kernel& kernel = *function->kernel;
  if (!GrowStack(context, kernel.local_bytes)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;

  KernelRun run{kDefaultNs, nullptr};
  const auto* sizes = KnownParameters(kernel.name);
  if (sizes != nullptr && Matches(kernel, *sizes)) {
    std::vector<uint64_t> arguments;
    if (CUresult error = ReadArguments(kernel, params, extra, &arguments); error != CUDA_SUCCESS)
      return error;
    run = PrepareKernel(kernel.name, arguments);
  }
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kKernel;
  work->launch.gpu = context->device->gpu;
  work->launch.stream = stream->id;
  work->launch.duration_ns = run.duration_ns;
  work->launch.blocks = blocks;
  work->launch.threads_per_block = static_cast<uint32_t>(threads);
  work->effect = std::move(run.effect);
  Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult LaunchEx(const CUlaunchConfig* config, CUfunction function, CUstream stream, void** params,
                  void** extra) {
  const Shape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                    {config->blockDimX, config->blockDimY, config->blockDimZ},
                    config->sharedMemBytes};
  return LaunchKernel(function, shape, stream, params, extra);
}

CUresult CallHost(CUstream stream_handle, std::function<void()> call) {
  GPUMUX_REQUIRE_CONTEXT(context);
  GPUMUX_REQUIRE_STREAM(stream, context, stream_handle);
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kCall;
  work->effect = [call = std::move(call)] {
    call();
    return true;
  };
  Engine::Get().Enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

using HostFunction = void (*)(void*);
using StreamCallback = void (*)(CUstream, CUresult, void*);

CUresult HostFunc(CUstream stream, HostFunction function, void* data) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CallHost(stream, [=] { function(data); });
}
CUresult AddCallback(CUstream stream, StreamCallback callback, void* data, unsigned flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return CallHost(stream, [=] { callback(stream, CUDA_SUCCESS, data); });
}

}  // namespace

GPUMUX_CU cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                         unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return LaunchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, params, extra);
}
GPUMUX_CU cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  return LaunchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared}, PerThread(stream), params, extra);
}
GPUMUX_CU cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                    unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                    void** params) {
  return LaunchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, params, nullptr);
}
GPUMUX_CU cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                         unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                         void** params) {
  return LaunchKernel(f, {{gx, gy, gz}, {bx, by, bz}, shared}, PerThread(stream), params, nullptr);
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
