// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::softgpu {

// What cuDriverGetVersion answers (12040 for CUDA 12.4), and the newest version
// that cuGetProcAddress knows. Answered before cuInit too, as in the driver.
int CudaVersion();
// What the server says once there is a connection to it.
void SetCudaVersion(int version);

}  // namespace gpumux::softgpu
