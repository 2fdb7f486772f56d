// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/module.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "sim/gpu_spec.h"
#include "sim/slab_layout.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/stack.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

Modules& Modules::Get() {
  static Modules* modules = new Modules;
  return *modules;
}

CUresult Modules::ReadImage(const void* image, std::shared_ptr<const PtxModule>* ptx) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Machine code for a GPU: there is none that could run it.
  const auto* bytes = static_cast<const unsigned char*>(image);
  const bool elf = bytes[0] == 0x7f && bytes[1] == 'E' && bytes[2] == 'L' && bytes[3] == 'F';
  const bool fatbin = bytes[0] == 0x50 && bytes[1] == 0xed && bytes[2] == 0x55 && bytes[3] == 0xba;
  if (elf || fatbin) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const std::string_view text(static_cast<const char*>(image));
  if (text.find(".version") == std::string_view::npos) return CUDA_ERROR_INVALID_IMAGE;
  auto parsed = ParsePtx(text);
  if (!parsed) return CUDA_ERROR_INVALID_PTX;
  *ptx = std::make_shared<const PtxModule>(std::move(*parsed));
  return CUDA_SUCCESS;
}

CUresult Modules::ReadFile(const char* path, std::string* image) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = fopen(path, "rbe");
  if (file == nullptr) return CUDA_ERROR_FILE_NOT_FOUND;
  char buffer[65536];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), file)) > 0;) image->append(buffer, n);
  fclose(file);
  image->append(8, '\0');
  return CUDA_SUCCESS;
}

CUresult Modules::Load(Context* context, std::shared_ptr<const PtxModule> ptx, Module** out) {
  auto module = std::make_unique<Module>();
  module->context = context;
  module->ptx = std::move(ptx);
  uint64_t bytes = 0;
  std::vector<uint64_t> offsets;
  for (const auto& global : module->ptx->globals) {
    bytes = sim::RoundUp(bytes, global.alignment);
    offsets.push_back(bytes);
    if (global.bytes > sim::kMaxAllocationBytes - bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    bytes += global.bytes;
  }
  if (module->ptx->uses_heap && !TakeHeap(context)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes > 0) {
    if (CUresult error = Memory::Get().AllocGlobals(context, bytes, &module->base); error != CUDA_SUCCESS)
      return error;
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    module->addresses.push_back(module->base + offsets[i]);
    const auto& initial = module->ptx->globals[i].initial;
    if (!initial.empty())
      memcpy(reinterpret_cast<void*>(module->addresses.back()), initial.data(), initial.size());
  }
  std::lock_guard lock(mutex_);
  for (const auto& kernel : module->ptx->kernels) {
    auto function = std::make_unique<Function>();
    function->module = module.get();
    function->kernel = &kernel;
    function->max_dynamic_shared -= static_cast<int>(std::min<uint64_t>(kernel.shared_bytes, 49152));
    functions_.emplace(function.get(), function.get());
    module->functions.push_back(std::move(function));
  }
  *out = module.get();
  modules_.emplace(module.get(), std::move(module));
  return CUDA_SUCCESS;
}

void Modules::UnloadLocked(Module* module) {
  for (const auto& function : module->functions) functions_.erase(function.get());
  if (module->base != 0) Memory::Get().FreeGlobals(module->base);
  modules_.erase(module);
}

CUresult Modules::Unload(CUmodule handle) {
  std::lock_guard lock(mutex_);
  auto it = modules_.find(reinterpret_cast<Module*>(handle));
  if (it == modules_.end()) return CUDA_ERROR_INVALID_HANDLE;
  UnloadLocked(it->first);
  return CUDA_SUCCESS;
}

Module* Modules::FindModule(CUmodule handle) {
  std::lock_guard lock(mutex_);
  auto it = modules_.find(reinterpret_cast<Module*>(handle));
  return it != modules_.end() ? it->first : nullptr;
}

Function* Modules::FindFunction(Context* context, CUfunction handle) {
  std::lock_guard lock(mutex_);
  if (auto it = functions_.find(handle); it != functions_.end()) return it->second;
  auto it = kernels_.find(handle);
  if (it == kernels_.end() || context == nullptr) return nullptr;
  Module* module = nullptr;
  if (ModuleOf(it->second->library, context, &module) != CUDA_SUCCESS) return nullptr;
  return module->functions[it->second->index].get();
}

Library* Modules::LoadLibrary(std::shared_ptr<const PtxModule> ptx) {
  auto library = std::make_unique<Library>();
  library->ptx = std::move(ptx);
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < library->ptx->kernels.size(); ++i) {
    auto kernel = std::make_unique<Kernel>();
    kernel->library = library.get();
    kernel->index = i;
    kernels_.emplace(kernel.get(), kernel.get());
    library->kernels.push_back(std::move(kernel));
  }
  Library* raw = library.get();
  libraries_.emplace(raw, std::move(library));
  return raw;
}

CUresult Modules::UnloadLibrary(CUlibrary handle) {
  std::lock_guard lock(mutex_);
  auto it = libraries_.find(reinterpret_cast<Library*>(handle));
  if (it == libraries_.end()) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [context, module] : it->first->modules) UnloadLocked(module);
  for (const auto& kernel : it->first->kernels) kernels_.erase(kernel.get());
  libraries_.erase(it);
  return CUDA_SUCCESS;
}

Library* Modules::FindLibrary(CUlibrary handle) {
  std::lock_guard lock(mutex_);
  auto it = libraries_.find(reinterpret_cast<Library*>(handle));
  return it != libraries_.end() ? it->first : nullptr;
}

Kernel* Modules::FindKernel(CUkernel handle) {
  std::lock_guard lock(mutex_);
  auto it = kernels_.find(handle);
  return it != kernels_.end() ? it->second : nullptr;
}

CUresult Modules::ModuleOf(Library* library, Context* context, Module** out) {
  std::lock_guard lock(mutex_);
  Module*& module = library->modules[context];
  if (module == nullptr) {
    if (CUresult error = Load(context, library->ptx, &module); error != CUDA_SUCCESS) {
      library->modules.erase(context);
      return error;
    }
  }
  *out = module;
  return CUDA_SUCCESS;
}

void Modules::RemoveContext(Context* context) {
  std::lock_guard lock(mutex_);
  for (const auto& [library, owned] : libraries_) library->modules.erase(context);
  for (auto it = modules_.begin(); it != modules_.end();) {
    Module* module = it->first;
    ++it;
    if (module->context == context) UnloadLocked(module);
  }
}

}  // namespace gpumux::softgpu
