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
inline constexpr auto CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = static_cast<cuda::CUresult>(720);
inline constexpr auto CUDA_ERROR_STREAM_CAPTURE_MERGE = static_cast<cuda::CUresult>(902);
inline constexpr auto CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = static_cast<cuda::CUresult>(903);
inline constexpr auto CUDA_ERROR_STREAM_CAPTURE_UNJOINED = static_cast<cuda::CUresult>(904);
inline constexpr auto CUDA_ERROR_STREAM_CAPTURE_ISOLATION = static_cast<cuda::CUresult>(905);
inline constexpr auto CUDA_ERROR_CAPTURED_EVENT = static_cast<cuda::CUresult>(907);
inline constexpr auto CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = static_cast<cuda::CUresult>(908);
inline constexpr auto CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = static_cast<cuda::CUresult>(910);
inline constexpr auto CUDA_ERROR_INVALID_CLUSTER_SIZE = static_cast<cuda::CUresult>(912);
inline constexpr auto CUDA_ERROR_INVALID_RESOURCE_TYPE = static_cast<cuda::CUresult>(914);
inline constexpr auto CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = static_cast<cuda::CUresult>(915);
inline constexpr auto CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = static_cast<cuda::CUresult>(712);
inline constexpr auto CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = static_cast<cuda::CUresult>(713);
inline constexpr auto CUDA_ERROR_MPS_RPC_FAILURE = static_cast<cuda::CUresult>(806);
inline constexpr auto CUDA_ERROR_MPS_SERVER_NOT_READY = static_cast<cuda::CUresult>(807);

}  // namespace gpumux::softgpu
