// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::guard {

// In the child of a fork.
void ForgetVirtualMemory();

}  // namespace gpumux::guard
