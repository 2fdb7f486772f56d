// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpumux/abi/cuda/driver.h"
#include "guard/allocations.h"

namespace gpumux::guard {

// Stream-ordered memory comes out of pools, and a pool takes device memory in
// steps of its own. So a pool is charged by what it reserves, which the driver
// tells, not by what is allocated from it (stream_hooks.cc).

// After `r` = the driver freed `ptr`, which Take() gave as stream-ordered.
cuda::CUresult FreeStreamOrdered(cuda::CUdeviceptr ptr, const Allocation& allocation, cuda::CUresult r);

// A context on `slot` is gone; `last`: none is left there, and with it what its
// device's pools held.
void RefreshPools(int slot, bool last);

// In the child of a fork.
void ForgetPools();
void ForgetContexts();

}  // namespace gpumux::guard
