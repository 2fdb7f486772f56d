// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "softgpu/client/connection.h"

namespace gpumux::softgpu {

// Starts the server of `location` unless one runs by now; returns when it
// listens. The server's program lies beside the library that calls. False if it
// could not be started.
bool StartServer(const Location& location);

}  // namespace gpumux::softgpu
