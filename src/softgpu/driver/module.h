// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/ptx.h"

namespace gpumux::softgpu {

struct Module;
struct Library;

// `threads` of a block with so much dynamic shared memory: how many blocks of
// the function an SM holds at a time.
struct Function;
uint64_t BlocksPerSm(const Function& function, int threads, size_t dynamic_shared);

struct Function {
  Module* module = nullptr;
  const PtxModule::Kernel* kernel = nullptr;
  int max_dynamic_shared = 49152;
  int carveout = -1;  // percent of the SM's memory to be shared memory; -1: the driver decides
};

// PTX loaded into one context: its variables have memory there.
struct Module {
  Context* context = nullptr;
  std::shared_ptr<const PtxModule> ptx;
  uint64_t base = 0;  // of its variables; 0: it has none
  std::vector<uint64_t> addresses;
  std::vector<std::unique_ptr<Function>> functions;
};

// Belongs to no context; has a module in each context that uses it.
struct Kernel {
  Library* library = nullptr;
  size_t index = 0;  // of the PTX's kernels
};
struct Library {
  std::shared_ptr<const PtxModule> ptx;
  std::vector<std::unique_ptr<Kernel>> kernels;
  std::unordered_map<Context*, Module*> modules;
};

// All code that this process has loaded. Thread-safe.
class Modules {
 public:
  static Modules& Get();

  // Reads an image as cuModuleLoadData is given it.
  static cuda::CUresult ReadImage(const void* image, std::shared_ptr<const PtxModule>* ptx);
  static cuda::CUresult ReadFile(const char* path, std::string* image);

  cuda::CUresult Load(Context* context, std::shared_ptr<const PtxModule> ptx, Module** out);
  cuda::CUresult Unload(cuda::CUmodule handle);
  Module* FindModule(cuda::CUmodule handle);
  // A function, or a kernel in the place of one: then that of the context.
  Function* FindFunction(Context* context, cuda::CUfunction handle);

  Library* LoadLibrary(std::shared_ptr<const PtxModule> ptx);
  cuda::CUresult UnloadLibrary(cuda::CUlibrary handle);
  Library* FindLibrary(cuda::CUlibrary handle);
  Kernel* FindKernel(cuda::CUkernel handle);
  cuda::CUresult ModuleOf(Library* library, Context* context, Module** out);

  void RemoveContext(Context* context);

 private:
  void UnloadLocked(Module* module);

  std::recursive_mutex mutex_;
  std::unordered_map<Module*, std::unique_ptr<Module>> modules_;
  std::unordered_map<Library*, std::unique_ptr<Library>> libraries_;
  std::unordered_map<const void*, Function*> functions_;
  std::unordered_map<const void*, Kernel*> kernels_;
};

}  // namespace gpumux::softgpu
