// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "softgpu/driver/graph_types.h"

namespace gpumux::softgpu {

// A side of a copy of plain bytes.
CopySide HostSide(const void* pointer);
CopySide DeviceSide(cuda::CUdeviceptr pointer);
CopySide UnifiedSide(cuda::CUdeviceptr pointer);
CopySide ArraySide(cuda::CUarray array, size_t offset);

// Copies in the order of `stream` of the current context. When it returns,
// pageable host memory has been read or written; with `wait`, all has.
cuda::CUresult Copy(const Copy3D& copy, cuda::CUstream stream, bool wait);
cuda::CUresult CopyBytes(const CopySide& to, const CopySide& from, uint64_t bytes, cuda::CUstream stream,
                         bool wait);

// Fills `rows` rows of `count` elements of `element` bytes (1, 2 or 4).
cuda::CUresult Fill(uint64_t to, uint64_t pitch, unsigned element, uint32_t value, uint64_t count,
                    uint64_t rows, cuda::CUstream stream);

}  // namespace gpumux::softgpu
