// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// Where the calling thread's calls go. A driver that does not answer (an earlier
// fault of the program's may be the reason) must not make its allocations free of
// charge: then what it told this thread last is taken, or the tenant's first GPU.

// False: no context is current, and the driver will say so itself.
bool CurrentDevice(cuda::CUdevice* device);
// The device whose memory `stream` allocates: its context's, which need not be
// the current one.
bool DeviceOfStream(cuda::CUstream stream, cuda::CUdevice* device);
// What the call is booked in: of a green context the primary one. Null if none is current.
cuda::CUcontext CurrentContext();

}  // namespace gpumux::guard
