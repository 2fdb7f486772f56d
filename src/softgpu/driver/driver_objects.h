// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "softgpu/driver/context.h"

namespace gpumux::softgpu {

// Device memory that a context takes for its streams and for the nodes of its
// executable graphs (sim/driver_objects.h). Thread-safe.

// False, and nothing changed: the device has no room.
bool AddStream(Context* context);
void RemoveStream(Context* context);
bool AddGraphNodes(Context* context, uint64_t count);
void RemoveGraphNodes(Context* context, uint64_t count);
// The context ends.
void GiveDriverObjects(Context* context);

}  // namespace gpumux::softgpu
