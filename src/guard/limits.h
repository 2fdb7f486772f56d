// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// `context` is gone and what its limits took with it: returns the bytes that
// were charged for them.
uint64_t DropLimits(cuda::CUcontext context);

// In the child of a fork.
void ForgetLimits();

}  // namespace gpumux::guard
