// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::probe {

// The address of `symbol` in the loaded object `handle` (of dlopen) as the
// object's own symbol table has it: no wrapper of dlsym has a say. Null if it is
// not there.
void* PastGuard(void* handle, const char* symbol);

}  // namespace gpumux::probe
