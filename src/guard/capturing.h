// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpumux/abi/cuda/driver.h"
#include "guard/driver.h"

namespace gpumux::guard {

// Whether what goes into the stream now is captured, or waits for a capture elsewhere, as
// the driver will say. False where it does not answer. Ends no capture.
inline bool IsCapturing(cuda::CUstream stream, bool per_thread) {
  auto* query = per_thread ? Real().cuStreamIsCapturing_ptsz : Real().cuStreamIsCapturing;
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  if (!query) return false;
  const cuda::CUresult r = query(stream, &status);
  return r == cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (r == cuda::CUDA_SUCCESS && status != cuda::CU_STREAM_CAPTURE_STATUS_NONE);
}

}  // namespace gpumux::guard
