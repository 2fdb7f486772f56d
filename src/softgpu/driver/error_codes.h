// SPDX-License-Identifier: Apache-2.0
//
// Result codes that the driver answers and that gpumux's own declarations,
// which hold what gpumux itself decides on, do not name.
#pragma once

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::softgpu {

inline constexpr auto CUDA_ERROR_DEVICE_UNAVAILABLE = static_cast<cuda::CUresult>(46);
inline constexpr auto CUDA_ERROR_UNSUPPORTED_LIMIT = static_cast<cuda::CUresult>(215);
inline constexpr auto CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY = static_cast<cuda::CUresult>(224);
inline constexpr auto CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = static_cast<cuda::CUresult>(217);
inline constexpr auto CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = static_cast<cuda::CUresult>(712);
inline constexpr auto CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = static_cast<cuda::CUresult>(713);

}  // namespace gpumux::softgpu
