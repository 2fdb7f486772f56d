// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "gpumux/abi/cuda/driver.h"
#include "softgpu/driver/context.h"

namespace gpumux::softgpu {

// A CUDA array: device memory in whole pages, at no address that a program sees.
struct Array {
  Context* context = nullptr;
  cuda::CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  uint64_t base = 0;
};

// All arrays of this process. Thread-safe.
class Arrays {
 public:
  static Arrays& Get();

  // Width of at least 1; a height or depth of 0 is a dimension that is not there.
  cuda::CUresult Create(Context* context, const cuda::CUDA_ARRAY3D_DESCRIPTOR& descriptor, Array** out);
  cuda::CUresult Destroy(cuda::CUarray handle);
  cuda::CUresult Describe(cuda::CUarray handle, cuda::CUDA_ARRAY3D_DESCRIPTOR* out);
  void RemoveContext(Context* context);

 private:
  std::mutex mutex_;
  std::unordered_map<Array*, std::unique_ptr<Array>> arrays_;
};

}  // namespace gpumux::softgpu
