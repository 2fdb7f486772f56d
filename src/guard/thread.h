// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// A thread of the guard's own inside the program: no signal of the program's comes to it,
// and it ends with the process. False: none could be made, or no thread library is there.
using ThreadBody = void* (*)(void*);
bool StartThread(ThreadBody body);

// Sleeps; returns early at any signal.
void Nap(uint64_t ns);

}  // namespace gpumux::guard
