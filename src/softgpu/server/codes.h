// SPDX-License-Identifier: Apache-2.0
//
// The driver's result codes that the server decides on.
#pragma once

namespace gpumux::softgpu {

inline constexpr int kDeviceUnavailable = 46;
inline constexpr int kIllegalAddress = 700;
inline constexpr int kNotPermitted = 800;
inline constexpr int kMpsConnectionFailed = 805;
inline constexpr int kMpsRpcFailure = 806;
inline constexpr int kMpsServerNotReady = 807;
inline constexpr int kMpsClientTerminated = 810;

}  // namespace gpumux::softgpu
