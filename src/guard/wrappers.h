// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "guard/driver.h"

// The exported functions: the driver's names, C linkage, visible.
#pragma GCC visibility push(default)
extern "C" {
using namespace gpumux::cuda;  // the parameter lists name the driver's types
using namespace gpumux::nvml;
#define GPUMUX_HOOK(name, params) CUresult name params;
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
#define GPUMUX_NVML_HOOK(name, params) nvmlReturn_t name params;
#include "guard/nvml_hooks.inc"
#undef GPUMUX_NVML_HOOK
}
#pragma GCC visibility pop

namespace gpumux::guard {

// The driver is older than the function (or there is none): what the caller of
// a missing function shall see.
inline constexpr cuda::CUresult kMissing = cuda::CUDA_ERROR_NOT_FOUND;

// Passes a call through to the driver.
template <typename... P, typename... A>
inline cuda::CUresult Through(cuda::CUresult (*real)(P...), A... args) {
  return real ? real(args...) : kMissing;
}

}  // namespace gpumux::guard
