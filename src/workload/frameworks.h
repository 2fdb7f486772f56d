// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/allocations.h"
#include "workload/options.h"

namespace gpumux::workload {

// Takes memory as a framework does at its first use of the GPU.
//
//   TensorFlow  one region of what cuMemGetInfo says is free, less 1800 MiB for
//               its own libraries (its figure for compute capability 9);
//               while that is refused, 0.9 of the size before.
//   JAX         one region of 75 % of the total; refused is refused.
//   PyTorch     segments as its caching allocator makes them for tensors of
//               growing size (2 MiB, 20 MiB, multiples of 2 MiB), until `stop_at`
//               bytes are held (0: no end) or one is refused.
//
// `total_bytes` and `free_bytes` are the driver's answers just before.
Outcome TakeLike(Framework framework, Holdings& holdings, uint64_t total_bytes, uint64_t free_bytes,
                 uint64_t stop_at);

}  // namespace gpumux::workload
