// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace gpumux::sim {

// What the model knows of how a GPU is shared. The figures of the H200 were
// measured, with the driver named there (docs/design/software-gpu.md lists
// how); those of other GPUs follow from them and are assumed (gpu_models.h).
struct GpuSpec {
  // Memory, in bytes.
  uint64_t nvml_total;           // what NVML calls total (v2: reserved + the next)
  uint64_t usable;               // what a program can use, and what the driver calls total
  uint64_t context_own;          // a context, in the process's own figure
  uint64_t context_device;       // the same context, in the device's figure
  uint64_t opened_device;        // while any process has called cuInit, in the device's figure alone
  uint64_t headroom;             // the driver refuses what would leave less free than this
  uint64_t managed_batch;        // managed memory takes this much at a time, and keeps what is over
  uint64_t default_stack_bytes;  // local memory of a thread that a context includes

  // Compute.
  int sms;
  int threads_per_sm;
  int blocks_per_sm;
  int threads_per_block;

  // The driver's own time-slicing between processes.
  std::chrono::nanoseconds slice;
  std::chrono::nanoseconds switch_cost;
};

// NVIDIA H200, driver 580.159.04. The slice is the value at which the model
// gives the measured waits of a neighbour (2.06 ms p50, 2.9 ms p99); the
// switch is what two alternating clients lose a turn (635 us for 500 us of work).
inline constexpr GpuSpec kH200 = {
    .nvml_total = 150'754'820'096,
    .usable = 150'109'880'320,
    .context_own = 543'162'368,
    .context_device = 548'995'072,
    .opened_device = 3'407'872,
    .headroom = 2 << 20,
    .managed_batch = 128 << 20,
    .default_stack_bytes = 1024,
    .sms = 132,
    .threads_per_sm = 2048,
    .blocks_per_sm = 32,
    .threads_per_block = 1024,
    .slice = std::chrono::microseconds(2200),
    .switch_cost = std::chrono::microseconds(135),
};

}  // namespace gpumux::sim
