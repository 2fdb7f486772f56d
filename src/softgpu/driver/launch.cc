// SPDX-License-Identifier: Apache-2.0
//
// What a launch of a kernel or a host function is, checked and made ready.
#include <cstring>

#include "sim/gpu_spec.h"
#include "softgpu/driver/api.h"
#include "softgpu/driver/error_codes.h"
#include "softgpu/driver/kernels.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/operation.h"
#include "softgpu/driver/stack.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

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
                       std::vector<std::vector<char>>* out) {
  const char* buffer = nullptr;
  uint64_t buffer_bytes = 0;
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
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
    const char* from = nullptr;
    if (params != nullptr) {
      from = static_cast<const char*>(params[i]);
    } else if (buffer != nullptr && parameter.offset + parameter.size <= buffer_bytes) {
      from = buffer + parameter.offset;
    }
    if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
    out->emplace_back(from, from + parameter.size);
  }
  return CUDA_SUCCESS;
}

uint64_t Product(const unsigned (&sizes)[3]) { return static_cast<uint64_t>(sizes[0]) * sizes[1] * sizes[2]; }

CUresult FindChecked(Context* context, const KernelOperation& operation, Function** out) {
  Function* function = Modules::Get().FindFunction(context, operation.function);
  if (function == nullptr || function->module->context != context) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t threads = Product(operation.block), blocks = Product(operation.grid);
  if (threads == 0 || threads > static_cast<uint64_t>(sim::kH200.threads_per_block) ||
      operation.block[2] > 64 || blocks == 0 || operation.grid[0] > 2147483647 || operation.grid[1] > 65535 ||
      operation.grid[2] > 65535 ||
      operation.shared_bytes > static_cast<unsigned>(function->max_dynamic_shared)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (operation.cooperative &&
      blocks > static_cast<uint64_t>(context->device->description.sms) *
                   BlocksPerSm(*function, static_cast<int>(threads), operation.shared_bytes)) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  *out = function;
  return CUDA_SUCCESS;
}

}  // namespace

uint64_t BlocksPerSm(const Function& function, int threads, size_t dynamic_shared) {
  if (threads > sim::kH200.threads_per_block) return 0;
  const Description& gpu = function.module->context->device->description;
  const uint64_t shared_of_sm = static_cast<uint64_t>(gpu.shared_kib_per_sm) * 1024;
  constexpr uint64_t kSharedOfBlock = 1024;  // the driver keeps 1 KiB of each block
  const uint64_t rounded = (static_cast<uint64_t>(threads) + 31) / 32 * 32;
  const uint64_t fit = std::min<uint64_t>(static_cast<uint64_t>(gpu.threads_per_sm) / rounded,
                                          static_cast<uint64_t>(gpu.blocks_per_sm));
  const uint64_t shared = dynamic_shared + function.kernel->shared_bytes;
  return std::min(fit, shared_of_sm / (shared + kSharedOfBlock));
}

CUresult ReadKernel(Context* context, const KernelNodeParams& params, KernelOperation* out) {
  out->is_kernel = params.function == nullptr && params.kernel != nullptr;
  out->function = out->is_kernel ? reinterpret_cast<CUfunction>(params.kernel) : params.function;
  out->grid[0] = params.grid_x;
  out->grid[1] = params.grid_y;
  out->grid[2] = params.grid_z;
  out->block[0] = params.block_x;
  out->block[1] = params.block_y;
  out->block[2] = params.block_z;
  out->shared_bytes = params.shared_bytes;
  Function* function = nullptr;
  if (CUresult error = FindChecked(context, *out, &function); error != CUDA_SUCCESS) return error;
  return ReadArguments(*function->kernel, params.params, params.extra, &out->arguments);
}

CUresult CheckKernel(Context* context, const KernelOperation& operation) {
  Function* function = nullptr;
  return FindChecked(context, operation, &function);
}

CUresult MakeRoomForKernel(Context* context, const KernelOperation& operation) {
  Function* function = nullptr;
  if (CUresult error = FindChecked(context, operation, &function); error != CUDA_SUCCESS) return error;
  return GrowStack(context, function->kernel->local_bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult PrepareKernel(Context* context, const KernelOperation& operation, WorkPtr* out) {
  Function* function = nullptr;
  if (CUresult error = FindChecked(context, operation, &function); error != CUDA_SUCCESS) return error;
  const PtxModule::Kernel& kernel = *function->kernel;
  if (!GrowStack(context, kernel.local_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  KernelRun run{kDefaultNs, nullptr};
  const auto* sizes = KnownParameters(kernel.name);
  if (sizes != nullptr && Matches(kernel, *sizes)) {
    std::vector<uint64_t> arguments;
    for (const auto& argument : operation.arguments) {
      uint64_t value = 0;
      memcpy(&value, argument.data(), std::min(argument.size(), sizeof(value)));
      arguments.push_back(value);
    }
    run = PrepareKernel(kernel.name, arguments);
  }
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kKernel;
  work->launch.gpu = context->device->gpu;
  work->launch.duration_ns = run.duration_ns;
  work->launch.blocks = Product(operation.grid);
  work->launch.threads_per_block = static_cast<uint32_t>(Product(operation.block));
  work->effect = std::move(run.effect);
  *out = std::move(work);
  return CUDA_SUCCESS;
}

WorkPtr PrepareHost(const HostOperation& operation) {
  auto work = std::make_shared<Work>();
  work->kind = Work::Kind::kCall;
  work->effect = [host = operation.host] {
    host.function(host.data);
    return true;
  };
  return work;
}

}  // namespace gpumux::softgpu
