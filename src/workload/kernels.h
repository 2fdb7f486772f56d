// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "workload/driver.h"

namespace gpumux::workload {

// PTX (ISA 7.8, sm_80) of the kernels:
//   spin(u64 ns)                        busy until it has run for ns
//   fill(u64 ptr, u32 value, u64 n)     n words
//   saxpy(f32 a, u64 x, u64 y, u64 n)   y = a * x + y
//   checksum(u64 in, u64 n, u64 out)    *out (u64) += sum of n words; any grid
//   fault()                             writes to an address that is never mapped
extern const std::string_view kKernelsPtx;

// A module that holds `bytes` of device memory as a global variable.
std::string PtxWithGlobal(uint64_t bytes);
// A kernel `deep(u64 out)` of which every thread has `bytes` of local memory in use.
std::string PtxWithLocal(uint64_t bytes);
// A kernel `take(u64 out)` that calls the device's malloc, so that loading the
// module makes the driver set up its heap.
std::string PtxWithHeap();

struct Kernels {
  cuda::CUmodule module = nullptr;
  cuda::CUfunction spin = nullptr;
  cuda::CUfunction fill = nullptr;
  cuda::CUfunction saxpy = nullptr;
  cuda::CUfunction checksum = nullptr;
  cuda::CUfunction fault = nullptr;
};

// Needs a current context.
Result<Kernels> LoadKernels(const Driver& driver);

// Writes a pattern into [ptr, ptr + bytes), reads it back on the GPU and
// compares; then saxpy on small vectors, compared on the host. kInternal with
// what differs.
Status Verify(const Driver& driver, const Kernels& kernels, cuda::CUdeviceptr ptr, uint64_t bytes);

}  // namespace gpumux::workload
