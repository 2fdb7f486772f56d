// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// What is in a graph, and in the graphs that are nodes of it.
struct GraphContent {
  uint64_t nodes = 0;
  bool known = true;          // the driver said it all
  uint64_t local_bytes = 0;   // a thread of its kernels, the largest; small ones may count as 0
  uint64_t memory_bytes = 0;  // memory nodes, each rounded as the pool grows
  cuda::CUdevice device = 0;  // theirs: all on the same
};

GraphContent ReadGraph(cuda::CUgraph graph);

// Local memory a thread that a node's kernel needs, given by either handle; a
// small one may count as 0.
uint64_t LocalBytesOfKernel(cuda::CUfunction func, cuda::CUkernel kern);

}  // namespace gpumux::guard
