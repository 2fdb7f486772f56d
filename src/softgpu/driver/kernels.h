// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace gpumux::softgpu {

// What a kernel does, by its name. Those known here compute what the kernels of
// the same names in gpumux-workload compute; any other takes kDefaultNs and
// changes nothing.
struct KernelRun {
  uint64_t duration_ns = 0;  // of one block
  // False: it used memory that it must not use. Empty: nothing to compute.
  std::function<bool()> effect;
};

// Names and what each parameter takes, in bytes:
//   spin(8 nanoseconds)                      busy
//   fill(8 pointer, 4 value, 8 count)        words
//   saxpy(4 a, 8 x, 8 y, 8 count)            y += a * x, floats
//   checksum(8 pointer, 8 count, 8 out)      *out (8 bytes) += the sum of words
//   fault()                                  an illegal address
// Empty for any other name.
const std::vector<uint64_t>* KnownParameters(std::string_view name);

// `arguments` has the bytes of each known parameter, one after another at 8-byte
// steps.
KernelRun PrepareKernel(std::string_view name, const std::vector<uint64_t>& arguments);

inline constexpr uint64_t kDefaultNs = 5'000;

}  // namespace gpumux::softgpu
