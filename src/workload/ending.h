// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/kernels.h"
#include "workload/options.h"

namespace gpumux::workload {

// Writes to an invalid address on the GPU; the driver's answer (700 from a real one).
cuda::CUresult Fault(const Driver& driver, const Kernels& kernels);

// Ends the process as `--end` says, with everything still allocated; `status`
// where the way has one. kReturn and kFault come back here and return `status`.
// kHang leaves a kernel running that never ends, and waits for it.
int EndProcess(const Driver& driver, const Kernels& kernels, Ending ending, int status);

}  // namespace gpumux::workload
