// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::cli {

// Finds `command` as execvp would, before anything is asked of the daemon: a
// typing error must not wait in a queue first. kNoCommand or kNotExecutable.
Result<std::string> FindProgram(const std::string& command);

}  // namespace gpumux::cli
