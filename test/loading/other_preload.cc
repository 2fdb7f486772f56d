// SPDX-License-Identifier: Apache-2.0
//
// Another preload library that stands in front of the same functions, as a
// tracer does: it counts, finds the next one by RTLD_NEXT, and passes on.
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "gpumux/abi/cuda/driver.h"

using namespace gpumux::cuda;

namespace {
int calls = 0;
}

extern "C" {

// How many calls came by here.
int OtherPreloadCalls() { return calls; }

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  static const auto next =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
  if (next == nullptr) return CUDA_ERROR_NOT_FOUND;
  ++calls;
  return next(pointer, bytes);
}

int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
  static const auto next =
      reinterpret_cast<int (*)(const char*, char* const*, char* const*)>(dlsym(RTLD_NEXT, "execve"));
  ++calls;
  return next(path, argv, envp);
}

}  // extern "C"
