// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "softgpu/client/connection.h"

namespace gpumux::softgpu {

enum class Start {
  kListens,
  kFailed,   // trying again may help
  kRefused,  // it will not: a spec that is none, a directory that is none
};
// Starts the server of `location` unless one runs by now; returns when it
// listens. The server's program lies beside the library that calls; what it has
// to say is in softgpud.log in the directory.
Start StartServer(const Location& location);

}  // namespace gpumux::softgpu
