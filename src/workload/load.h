// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"
#include "workload/kernels.h"
#include "workload/options.h"
#include "workload/statistics.h"

namespace gpumux::workload {

// Runs requests as the options say and measures each from its start (closed
// loop) or its arrival (open loop) to its end on the GPU.
//
// One thread a stream. In the open loop the streams serve one queue in order of
// arrival, so a request's latency includes the time it waited there; requests
// that arrived in time are finished even after `seconds`.
Result<Summary> RunLoad(const Driver& driver, cuda::CUcontext context, const Kernels& kernels,
                        const Options& options);

}  // namespace gpumux::workload
