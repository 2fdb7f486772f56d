// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "gpumux/abi/cuda/driver.h"
#include "softgpu/driver/context.h"

namespace gpumux::softgpu {

struct MipmappedArray;

// A CUDA array: device memory in whole pages, at no address that a program
// sees. Its bytes lie row after row, slice after slice; what it takes from the
// device is what the device's tiled layout needs.
struct Array {
  Context* context = nullptr;
  cuda::CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  MipmappedArray* levels = nullptr;  // of which it is one
  uint64_t base = 0;                 // 0: no memory is behind it (deferred, sparse)
  uint64_t row_bytes = 0;
  uint64_t rows = 0;
  uint64_t slices = 0;         // depth or layers
  uint64_t element_bytes = 0;  // of one element, or of one block of a compressed format
  uint64_t device_bytes = 0;   // in the device's layout, before rounding to pages
};

struct MipmappedArray {
  Context* context = nullptr;
  uint64_t base = 0;
  unsigned flags = 0;
  uint64_t device_bytes = 0;
  std::vector<Array*> levels;
};

// All arrays of this process. Thread-safe.
class Arrays {
 public:
  static Arrays& Get();

  // A height or depth of 0 is a dimension that is not there.
  cuda::CUresult Create(Context* context, const cuda::CUDA_ARRAY3D_DESCRIPTOR& descriptor, Array** out);
  cuda::CUresult Destroy(cuda::CUarray handle);
  // A copy of what the handle means; false if it means nothing.
  bool Find(cuda::CUarray handle, Array* out);

  cuda::CUresult CreateMipmapped(Context* context, const cuda::CUDA_ARRAY3D_DESCRIPTOR& descriptor,
                                 unsigned levels, MipmappedArray** out);
  cuda::CUresult DestroyMipmapped(cuda::CUmipmappedArray handle);
  cuda::CUresult GetLevel(cuda::CUmipmappedArray handle, unsigned level, Array** out);
  bool FindMipmapped(cuda::CUmipmappedArray handle, MipmappedArray* out);

  void RemoveContext(Context* context);

 private:
  void DestroyLocked(MipmappedArray* mipmapped);

  std::mutex mutex_;
  std::unordered_map<Array*, std::unique_ptr<Array>> arrays_;
  std::unordered_map<MipmappedArray*, std::unique_ptr<MipmappedArray>> mipmapped_;
};

}  // namespace gpumux::softgpu
