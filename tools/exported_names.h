// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpumux::tools {

// The names beginning with `prefix` that a loaded library (dlopen's handle)
// defines for others, sorted; empty if it has no symbol table that we can read.
// A versioned name appears once.
std::vector<std::string> ExportedNames(void* library, const char* prefix);

}  // namespace gpumux::tools
