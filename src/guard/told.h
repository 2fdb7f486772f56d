// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "guard/session.h"

namespace gpumux::guard {

// What the program is told of a GPU's memory, in every API alike: the tenant's
// limit as the total, or the part that it set for this process. By the daemon, and
// without one by the pages.
MemoryAnswer ToldMemory(int slot);

// "GPU-" and 32 hexadecimal digits with dashes between them, and whatever follows.
bool ParseUuid(const char* text, uint8_t uuid[16]);

}  // namespace gpumux::guard
