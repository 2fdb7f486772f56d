// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// A tenant of mode mps (docs/design/mps.md). Without that mode they do nothing.

// Before a context is made: false if the program is to have none, since it would
// run outside MPS and its tenant is strict.
bool MayRunUnderMps(int slot, cuda::CUdevice device);
// What the driver says of the limits, into the process page; once the first
// context is there.
void ReadBackMps(int slot, cuda::CUdevice device, cuda::CUcontext context);

}  // namespace gpumux::guard
