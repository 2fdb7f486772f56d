// SPDX-License-Identifier: Apache-2.0
//
// How an entry point of the driver is written here: GPUMUX_CU with the
// exported name, at namespace scope of gpumux::cuda, and nothing but checks and
// a call. What has no such definition answers CUDA_ERROR_NOT_SUPPORTED (stubs.cc).
#pragma once

#include "gpumux/abi/cuda/driver.h"

#define GPUMUX_CU extern "C" __attribute__((visibility("default"))) CUresult

// Returns from the entry point unless cuInit has succeeded in this process.
#define GPUMUX_REQUIRE_INIT()                                                 \
  do {                                                                        \
    if (!::gpumux::softgpu::Initialized()) return CUDA_ERROR_NOT_INITIALIZED; \
  } while (0)

// Declares `name`, the calling thread's current context, or returns the error.
#define GPUMUX_REQUIRE_CONTEXT(name)                                                                    \
  ::gpumux::softgpu::Context* name = nullptr;                                                           \
  do {                                                                                                  \
    if (CUresult error = ::gpumux::softgpu::CurrentContext(&name); error != CUDA_SUCCESS) return error; \
  } while (0)
