// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::softgpu {

// Which side of a copy must be device memory (pinned host memory counts, as it
// can be used from the device).
enum class Side { kAny, kDevice };

// `rows` rows of `width` bytes; a plain copy has one.
struct CopyShape {
  uint64_t width = 0;
  uint64_t rows = 1;
  uint64_t to_pitch = 0;
  uint64_t from_pitch = 0;
};

// Copies in the order of `stream` of the current context. When it returns,
// pageable host memory has been read or written; with `wait`, all has.
cuda::CUresult Copy(uint64_t to, Side to_side, uint64_t from, Side from_side, const CopyShape& shape,
                    cuda::CUstream stream, bool wait);

// Fills `rows` rows of `count` elements of `element` bytes (1, 2 or 4).
cuda::CUresult Fill(uint64_t to, uint64_t pitch, unsigned element, uint32_t value, uint64_t count,
                    uint64_t rows, cuda::CUstream stream);

}  // namespace gpumux::softgpu
