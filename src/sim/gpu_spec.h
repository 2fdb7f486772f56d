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

  // Under MPS. A client's context with n of the SMs takes, in the device's
  // figure, what does not depend on them and n parts of the rest; with all of
  // them less than a context without MPS.
  uint64_t mps_server_own;
  uint64_t mps_server_device;
  uint64_t mps_context_base;    // of the context, what does not depend on the SMs
  uint64_t mps_context_saving;  // a context's device figure less that of a client's with all SMs
  uint64_t mps_context_apart;   // a client's device figure less its own

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
// MPS: with server and one client the driver says 142,565 MiB free, of which the
// client has 516, with 8 SMs 143,023; between these two points the line is assumed.
// Of a limit of 4096 MiB 3,582 are free. The server has 66 to 75 MiB.
inline constexpr GpuSpec kH200 = {
    .nvml_total = 150'754'820'096,
    .usable = 150'109'880'320,
    .context_own = 543'162'368,
    .context_device = 548'995'072,
    .opened_device = 3'407'872,
    .headroom = 2 << 20,
    .managed_batch = 128 << 20,
    .default_stack_bytes = 1024,
    .mps_server_own = 66 << 20,
    .mps_server_device = 74'186'752,
    .mps_context_base = 29'833'679,
    .mps_context_saving = 7'929'856,
    .mps_context_apart = 2 << 20,
    .sms = 132,
    .threads_per_sm = 2048,
    .blocks_per_sm = 32,
    .threads_per_block = 1024,
    .slice = std::chrono::microseconds(2200),
    .switch_cost = std::chrono::microseconds(135),
};

}  // namespace gpumux::sim
