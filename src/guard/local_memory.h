// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// Local memory ("stack"): device memory for every thread that the GPU can hold,
// as much a thread as the context's limit says. The limit rises by itself when
// a kernel that needs more is launched, or an executable graph with it is made;
// the memory stays until the limit is lowered. So what comes next is charged
// before, and counted by the limit that the driver states afterwards.
//
// Threads: any.

// Kernels whose need is within what a context includes: they are launched
// without a look. A cell is the function's handle, or null.
inline constexpr unsigned kSmallKernels = 4096;
extern constinit cuda::CUfunction g_small_kernels[kSmallKernels];

inline unsigned SmallKernelCell(cuda::CUfunction f) {
  const auto key = reinterpret_cast<uintptr_t>(f);
  return static_cast<unsigned>((key >> 4) ^ (key >> 16)) % kSmallKernels;
}
inline bool IsSmallKernel(cuda::CUfunction f) {
  return __atomic_load_n(&g_small_kernels[SmallKernelCell(f)], __ATOMIC_RELAXED) == f;
}
// Functions may have ended (their handles become others'), or the context's
// limit is below the default.
void ForgetSmallKernels();

// Larger than any: where the driver does not say. What such a call took is charged
// after it, by the limit that the driver has then.
inline constexpr uint64_t kUnknownLocalBytes = ~0ull;

// Bytes a thread that a function, or a kernel handle cast to one, needs; 0 where
// it cannot be asked. Remembers the small ones.
uint64_t LocalBytesOf(cuda::CUfunction f);

// A call of the driver after which the current context's limit may be higher.
struct StackGrowth {
  bool watched = false;
  int slot = 0;
  cuda::CUcontext context = nullptr;
  cuda::CUdevice device = 0;
  uint64_t reserved = 0;
  uint64_t before = 0, wanted = 0;  // the limit
};
// Before: something that needs `bytes` a thread comes. False: the promise does
// not allow it; the driver is not to be asked.
bool BeginStackGrowth(uint64_t bytes, StackGrowth* growth);
// After: `r` is what the driver answered. Returns by how much the local memory grew.
uint64_t EndStackGrowth(const StackGrowth& growth, cuda::CUresult r);

template <typename Call>
cuda::CUresult WithStack(uint64_t bytes, Call&& call) {
  StackGrowth growth;
  if (!BeginStackGrowth(bytes, &growth)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  const cuda::CUresult r = call();
  EndStackGrowth(growth, r);
  return r;
}

// cuCtxSetLimit(CU_LIMIT_STACK_SIZE, value), which may also give memory back.
cuda::CUresult SetStackLimit(size_t value);

// `context` is gone: returns the bytes that were charged for its local memory.
uint64_t DropStack(cuda::CUcontext context);

// In the child of a fork.
void ForgetStacks();

}  // namespace gpumux::guard
