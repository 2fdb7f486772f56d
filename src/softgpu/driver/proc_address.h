// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::softgpu {

// cuGetProcAddress_v2 as recorded; `status` may be null.
cuda::CUresult FindEntryPoint(const char* name, int version, cuda::cuuint64_t flags, void** out,
                              cuda::CUdriverProcAddressQueryResult* status);

}  // namespace gpumux::softgpu
