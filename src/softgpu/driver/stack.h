// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "softgpu/driver/context.h"

namespace gpumux::softgpu {

// Local memory and the device's heap: memory that a context holds for its
// kernels. Each is false, and changes nothing, when the device has no room.

// Exactly so much for each thread that the GPU can hold, from now on
// (cuCtxSetLimit); what a context includes is measured with the default.
bool SetStack(Context* context, uint64_t bytes_per_thread);
// At least so much, for a kernel that needs it; it stays.
bool GrowStack(Context* context, uint64_t bytes_per_thread);
// The heap, with the first code that allocates on the device.
bool TakeHeap(Context* context);
// The context ends.
void GiveStackAndHeap(Context* context);

}  // namespace gpumux::softgpu
