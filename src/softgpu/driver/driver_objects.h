// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "softgpu/driver/context.h"

namespace gpumux::softgpu {

// Device memory that a context takes for its streams, the nodes of its
// executable graphs and its green contexts (sim/driver_objects.h). Thread-safe.

// False, and nothing changed: the device has no room.
bool AddStream(Context* context);
void RemoveStream(Context* context);
bool AddGraphNodes(Context* context, uint64_t count);
void RemoveGraphNodes(Context* context, uint64_t count);
// Of a green context with so many SMs, which its primary context takes.
bool AddGreenMemory(Context* primary, unsigned sms);
// The context ends.
void GiveDriverObjects(Context* context);

}  // namespace gpumux::softgpu
