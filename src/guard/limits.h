// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// The last context of `slot` is gone and what its limits took with it: returns
// the bytes that were charged for them.
uint64_t DropLimits(int slot);

// In the child of a fork.
void ForgetLimits();

}  // namespace gpumux::guard
