// SPDX-License-Identifier: Apache-2.0
//
// Modules, libraries, and what a program may ask about a function.
#include <algorithm>
#include <cstring>
#include <string>

#include "sim/gpu_spec.h"
#include "softgpu/driver/api.h"
#include "softgpu/driver/device_attributes.h"
#include "softgpu/driver/module.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

CUresult LoadImage(CUmodule* out, const void* image) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const PtxModule> ptx;
  if (CUresult error = Modules::ReadImage(image, &ptx); error != CUDA_SUCCESS) return error;
  Module* module = nullptr;
  if (CUresult error = Modules::Get().Load(context, std::move(ptx), &module); error != CUDA_SUCCESS)
    return error;
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}

CUfunction Handle(Function* function) { return reinterpret_cast<CUfunction>(function); }

CUresult FindGlobal(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes) {
  if (name == nullptr || (address == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < module.ptx->globals.size(); ++i) {
    if (module.ptx->globals[i].name != name) continue;
    if (address != nullptr) *address = module.addresses[i];
    if (bytes != nullptr) *bytes = module.ptx->globals[i].bytes;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace

GPUMUX_CU cuModuleLoadData(CUmodule* out, const void* image) { return LoadImage(out, image); }
GPUMUX_CU cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, int*, void**) {
  return LoadImage(out, image);
}
GPUMUX_CU cuModuleLoadFatBinary(CUmodule* out, const void* image) { return LoadImage(out, image); }
GPUMUX_CU cuModuleLoad(CUmodule* out, const char* path) {
  GPUMUX_REQUIRE_CONTEXT(context);
  std::string image;
  if (CUresult error = Modules::ReadFile(path, &image); error != CUDA_SUCCESS) return error;
  return LoadImage(out, image.data());
}
GPUMUX_CU cuModuleUnload(CUmodule handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  return Modules::Get().Unload(handle);
}
GPUMUX_CU cuModuleGetLoadingMode(int* mode) {
  GPUMUX_REQUIRE_INIT();
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = 2;  // lazy, the default
  return CUDA_SUCCESS;
}

#define REQUIRE_MODULE(name, handle)                \
  GPUMUX_REQUIRE_CONTEXT(context);                  \
  Module* name = Modules::Get().FindModule(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

GPUMUX_CU cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  REQUIRE_MODULE(module, handle);
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& function : module->functions) {
    if (function->kernel->name != name) continue;
    *out = Handle(function.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
GPUMUX_CU cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  REQUIRE_MODULE(module, handle);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(module->functions.size());
  return CUDA_SUCCESS;
}
GPUMUX_CU cuModuleEnumerateFunctions(CUfunction* out, unsigned count, CUmodule handle) {
  REQUIRE_MODULE(module, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count && i < module->functions.size(); ++i)
    out[i] = Handle(module->functions[i].get());
  return CUDA_SUCCESS;
}
GPUMUX_CU cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
  REQUIRE_MODULE(module, handle);
  return FindGlobal(*module, name, address, bytes);
}

// --- libraries

GPUMUX_CU cuLibraryLoadData(CUlibrary* out, const void* image, int*, void**, unsigned, int*, void**,
                            unsigned) {
  GPUMUX_REQUIRE_INIT();
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<const PtxModule> ptx;
  if (CUresult error = Modules::ReadImage(image, &ptx); error != CUDA_SUCCESS) return error;
  *out = reinterpret_cast<CUlibrary>(Modules::Get().LoadLibrary(std::move(ptx)));
  return CUDA_SUCCESS;
}
GPUMUX_CU cuLibraryLoadFromFile(CUlibrary* out, const char* path, int*, void**, unsigned, int*, void**,
                                unsigned) {
  GPUMUX_REQUIRE_INIT();
  std::string image;
  if (CUresult error = Modules::ReadFile(path, &image); error != CUDA_SUCCESS) return error;
  return cuLibraryLoadData(out, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
}
GPUMUX_CU cuLibraryUnload(CUlibrary handle) {
  GPUMUX_REQUIRE_INIT();
  return Modules::Get().UnloadLibrary(handle);
}

#define REQUIRE_LIBRARY(name, handle)                 \
  GPUMUX_REQUIRE_INIT();                              \
  Library* name = Modules::Get().FindLibrary(handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

GPUMUX_CU cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  REQUIRE_LIBRARY(library, handle);
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& kernel : library->kernels) {
    if (library->ptx->kernels[kernel->index].name != name) continue;
    *out = reinterpret_cast<CUkernel>(kernel.get());
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}
GPUMUX_CU cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  REQUIRE_LIBRARY(library, handle);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned>(library->kernels.size());
  return CUDA_SUCCESS;
}
GPUMUX_CU cuLibraryEnumerateKernels(CUkernel* out, unsigned count, CUlibrary handle) {
  REQUIRE_LIBRARY(library, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count && i < library->kernels.size(); ++i) {
    out[i] = reinterpret_cast<CUkernel>(library->kernels[i].get());
  }
  return CUDA_SUCCESS;
}
GPUMUX_CU cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  REQUIRE_LIBRARY(library, handle);
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* module = nullptr;
  if (CUresult error = Modules::Get().ModuleOf(library, context, &module); error != CUDA_SUCCESS)
    return error;
  *out = reinterpret_cast<CUmodule>(module);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary handle, const char* name) {
  REQUIRE_LIBRARY(library, handle);
  GPUMUX_REQUIRE_CONTEXT(context);
  Module* module = nullptr;
  if (CUresult error = Modules::Get().ModuleOf(library, context, &module); error != CUDA_SUCCESS)
    return error;
  return FindGlobal(*module, name, address, bytes);
}

namespace {
const std::string* KernelName(Kernel* kernel) { return &kernel->library->ptx->kernels[kernel->index].name; }
}  // namespace

GPUMUX_CU cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Function* function = Modules::Get().FindFunction(context, reinterpret_cast<CUfunction>(handle));
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *out = Handle(function);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  GPUMUX_REQUIRE_INIT();
  Kernel* kernel = Modules::Get().FindKernel(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUlibrary>(kernel->library);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuKernelGetName(const char** out, CUkernel handle) {
  GPUMUX_REQUIRE_INIT();
  Kernel* kernel = Modules::Get().FindKernel(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = KernelName(kernel)->c_str();
  return CUDA_SUCCESS;
}

// --- functions

#define REQUIRE_FUNCTION(name, handle)                           \
  GPUMUX_REQUIRE_CONTEXT(context);                               \
  Function* name = Modules::Get().FindFunction(context, handle); \
  if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

namespace {

enum {
  kMaxThreads = 0,
  kShared = 1,
  kConst = 2,
  kLocal = 3,
  kRegisters = 4,
  kPtxVersion = 5,
  kBinaryVersion = 6,
  kCacheMode = 7,
  kMaxDynamicShared = 8,
  kCarveout = 9,
  kClusterMustBeSet = 10,
  kLastAttribute = 15
};

CUresult GetAttribute(int* value, int attribute, const Function& function) {
  if (value == nullptr || attribute < 0 || attribute > kLastAttribute) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case kMaxThreads:
      *value = sim::kH200.threads_per_block;
      break;
    case kShared:
      *value = static_cast<int>(std::min<uint64_t>(function.kernel->shared_bytes, INT32_MAX));
      break;
    case kCarveout:
      *value = function.carveout;
      break;
    case kLocal:
      *value = static_cast<int>(std::min<uint64_t>(function.kernel->local_bytes, INT32_MAX));
      break;
    case kRegisters:
      *value = 32;
      break;
    case kPtxVersion:
      *value = 80;
      break;
    case kBinaryVersion:
      *value = 90;
      break;
    case kMaxDynamicShared:
      *value = function.max_dynamic_shared;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

}  // namespace

GPUMUX_CU cuFuncGetAttribute(int* value, int attribute, CUfunction handle) {
  REQUIRE_FUNCTION(function, handle);
  return GetAttribute(value, attribute, *function);
}
GPUMUX_CU cuFuncSetAttribute(CUfunction handle, int attribute, int value) {
  REQUIRE_FUNCTION(function, handle);
  if (attribute == kMaxDynamicShared) {
    // With what the kernel declares, no more than a block may have.
    const int most =
        *DeviceAttribute(97, context->device->description) - static_cast<int>(function->kernel->shared_bytes);
    if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
    function->max_dynamic_shared = value;
    return CUDA_SUCCESS;
  }
  if (attribute == kCarveout) {
    if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
    function->carveout = value;
    return CUDA_SUCCESS;
  }
  return attribute > kClusterMustBeSet && attribute <= kLastAttribute ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}
GPUMUX_CU cuFuncSetCacheConfig(CUfunction handle, int) {
  REQUIRE_FUNCTION(function, handle);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuFuncGetModule(CUmodule* out, CUfunction handle) {
  REQUIRE_FUNCTION(function, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuFuncGetName(const char** out, CUfunction handle) {
  REQUIRE_FUNCTION(function, handle);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = function->kernel->name.c_str();
  return CUDA_SUCCESS;
}
GPUMUX_CU cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  REQUIRE_FUNCTION(function, handle);
  if (offset == nullptr || index >= function->kernel->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel->parameters[index].offset;
  if (size != nullptr) *size = function->kernel->parameters[index].size;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuFuncIsLoaded(int* state, CUfunction handle) {
  REQUIRE_FUNCTION(function, handle);
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = 1;
  return CUDA_SUCCESS;
}
GPUMUX_CU cuFuncLoad(CUfunction handle) {
  REQUIRE_FUNCTION(function, handle);
  return CUDA_SUCCESS;
}
GPUMUX_CU cuKernelGetAttribute(int* value, int attribute, CUkernel handle, CUdevice) {
  REQUIRE_FUNCTION(function, reinterpret_cast<CUfunction>(handle));
  return GetAttribute(value, attribute, *function);
}
GPUMUX_CU cuKernelSetAttribute(int attribute, int value, CUkernel handle, CUdevice) {
  return cuFuncSetAttribute(reinterpret_cast<CUfunction>(handle), attribute, value);
}

namespace {
CUresult Occupancy(int* blocks, CUfunction handle, int threads, size_t shared) {
  REQUIRE_FUNCTION(function, handle);
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = static_cast<int>(BlocksPerSm(*function, threads, shared));
  return CUDA_SUCCESS;
}
}  // namespace
GPUMUX_CU cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                      size_t shared) {
  return Occupancy(blocks, function, threads, shared);
}
GPUMUX_CU cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads,
                                                               size_t shared, unsigned) {
  return Occupancy(blocks, function, threads, shared);
}

namespace {

using DynamicShared = size_t (*)(int threads);

// The block size with the most threads on an SM, the largest of those.
CUresult PotentialBlock(int* min_grid, int* block, CUfunction handle, DynamicShared shared_of, size_t shared,
                        int limit) {
  REQUIRE_FUNCTION(function, handle);
  if (min_grid == nullptr || block == nullptr || limit < 0) return CUDA_ERROR_INVALID_VALUE;
  const int most = limit > 0 ? std::min(limit, sim::kH200.threads_per_block) : sim::kH200.threads_per_block;
  uint64_t best = 0;
  *min_grid = *block = 0;
  for (int threads = most; threads > 0; threads -= threads % 32 != 0 ? threads % 32 : 32) {
    const size_t dynamic = shared_of != nullptr ? shared_of(threads) : shared;
    const uint64_t blocks = BlocksPerSm(*function, threads, dynamic);
    if (blocks * static_cast<uint64_t>(threads) <= best) continue;
    best = blocks * static_cast<uint64_t>(threads);
    *block = threads;
    *min_grid = static_cast<int>(blocks) * context->device->description.sms;
  }
  return CUDA_SUCCESS;
}

}  // namespace
GPUMUX_CU cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, CUfunction function,
                                           DynamicShared shared_of, size_t shared, int limit) {
  return PotentialBlock(min_grid, block, function, shared_of, shared, limit);
}
GPUMUX_CU cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block, CUfunction function,
                                                    DynamicShared shared_of, size_t shared, int limit,
                                                    unsigned) {
  return PotentialBlock(min_grid, block, function, shared_of, shared, limit);
}
GPUMUX_CU cuOccupancyAvailableDynamicSMemPerBlock(size_t* out, CUfunction handle, int blocks, int threads) {
  REQUIRE_FUNCTION(function, handle);
  if (out == nullptr || blocks <= 0 || threads <= 0 ||
      static_cast<uint64_t>(blocks) > BlocksPerSm(*function, threads, 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t of_block = static_cast<uint64_t>(context->device->description.shared_kib_per_sm) * 1024 /
                            static_cast<uint64_t>(blocks);
  *out = of_block - std::min(of_block, 1024 + function->kernel->shared_bytes);
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
