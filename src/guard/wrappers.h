// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "guard/driver.h"

// The guard's functions under the driver's names. The linker knows them by names
// of ours, since what is exported as cuMemAlloc_v2 is another function, which
// leads here (front.S): a library behind the guard in the search order may have
// one of that name too, and its turn comes first.
extern "C" {
using namespace gpumux::cuda;  // the parameter lists name the driver's types
using namespace gpumux::nvml;
#define GPUMUX_HOOK(name, params) CUresult name params __asm__("gpumux_hook_" #name);
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
#define GPUMUX_NVML_HOOK(name, params) nvmlReturn_t name params __asm__("gpumux_hook_" #name);
#include "guard/nvml_hooks.inc"
#undef GPUMUX_NVML_HOOK
}

namespace gpumux::guard {

// The driver is older than the function (or there is none): what the caller of
// a missing function shall see.
inline constexpr cuda::CUresult kMissing = cuda::CUDA_ERROR_NOT_FOUND;

// An error that stays: from then on every call of the process has it. The first
// one goes into the process page (lasting_error.cc).
void NoteLastingError(cuda::CUresult result);

// Passes a call through to the driver.
template <typename... P, typename... A>
inline cuda::CUresult Through(cuda::CUresult (*real)(P...), A... args) {
  const cuda::CUresult result = real ? real(args...) : kMissing;
  // Errors of the GPU and of MPS have these numbers.
  if (__builtin_expect(result >= cuda::CUDA_ERROR_ILLEGAL_ADDRESS, 0)) NoteLastingError(result);
  return result;
}

}  // namespace gpumux::guard
