// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace gpumux::ipc {

// The next connection of a socket that listens: non-blocking, close-on-exec; an invalid one
// when nobody waits. kInternal, e.g. when the process has no descriptor left.
Result<UniqueFd> AcceptFrom(int listener);

}  // namespace gpumux::ipc
