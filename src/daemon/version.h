// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::daemon {

inline constexpr const char* kVersion = GPUMUX_VERSION;  // the build's, from the project

}  // namespace gpumux::daemon
