// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// Executable graphs with memory nodes that exist now. For the launch path: 0
// means that no graph has to be looked up.
extern constinit uint32_t g_graphs_with_memory;

// Uploads or launches `exec` by `call`, charging what its memory nodes take.
cuda::CUresult RunGraph(cuda::CUgraphExec exec, cuda::CUresult (*call)(cuda::CUgraphExec, cuda::CUstream),
                        cuda::CUstream stream);

// A graph of the guard's own, charged as the program's are.
cuda::CUresult InstantiateOwn(cuda::CUgraphExec* exec, cuda::CUgraph graph, cuda::cuuint64_t flags);
void DestroyOwn(cuda::CUgraphExec exec);

// In the child of a fork.
void ForgetGraphs();

}  // namespace gpumux::guard
