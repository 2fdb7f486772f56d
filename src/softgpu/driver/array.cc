// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/array.h"

#include <algorithm>

#include "sim/slab_layout.h"
#include "softgpu/driver/memory.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

// Bytes of a channel by CUarray_format; 0 for formats that are not plain numbers.
uint64_t ChannelBytes(int format) {
  switch (format) {
    case 0x01:  // unsigned and signed 8 bits
    case 0x08:
      return 1;
    case 0x02:  // 16 bits, half
    case 0x09:
    case 0x10:
      return 2;
    case 0x03:  // 32 bits, float
    case 0x0a:
    case 0x20:
      return 4;
    default:
      return 0;
  }
}

}  // namespace

Arrays& Arrays::Get() {
  static Arrays* arrays = new Arrays;
  return *arrays;
}

CUresult Arrays::Create(Context* context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, Array** out) {
  const uint64_t channel = ChannelBytes(descriptor.Format);
  const unsigned channels = descriptor.NumChannels;
  if (channel == 0 || (channels != 1 && channels != 2 && channels != 4) || descriptor.Width == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t height = std::max<uint64_t>(descriptor.Height, 1),
                 depth = std::max<uint64_t>(descriptor.Depth, 1);
  // The device's limits (attributes 21 to 26).
  const bool fits = depth > 1    ? descriptor.Width <= 16384 && height <= 16384 && depth <= 16384
                    : height > 1 ? descriptor.Width <= 131072 && height <= 65536
                                 : descriptor.Width <= 131072;
  if (!fits) return CUDA_ERROR_INVALID_VALUE;
  auto array = std::make_unique<Array>();
  array->context = context;
  array->descriptor = descriptor;
  const uint64_t bytes = descriptor.Width * height * depth * channel * channels;
  if (CUresult error = Memory::Get().AllocGlobals(context, bytes, &array->base); error != CUDA_SUCCESS)
    return error;
  std::lock_guard lock(mutex_);
  *out = array.get();
  arrays_.emplace(array.get(), std::move(array));
  return CUDA_SUCCESS;
}

CUresult Arrays::Destroy(CUarray handle) {
  std::lock_guard lock(mutex_);
  auto it = arrays_.find(reinterpret_cast<Array*>(handle));
  if (it == arrays_.end()) return CUDA_ERROR_INVALID_HANDLE;
  Memory::Get().FreeGlobals(it->first->base);
  arrays_.erase(it);
  return CUDA_SUCCESS;
}

CUresult Arrays::Describe(CUarray handle, CUDA_ARRAY3D_DESCRIPTOR* out) {
  std::lock_guard lock(mutex_);
  auto it = arrays_.find(reinterpret_cast<Array*>(handle));
  if (it == arrays_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = it->first->descriptor;
  return CUDA_SUCCESS;
}

void Arrays::RemoveContext(Context* context) {
  std::lock_guard lock(mutex_);
  std::erase_if(arrays_, [&](const auto& entry) {
    if (entry.first->context != context) return false;
    Memory::Get().FreeGlobals(entry.first->base);
    return true;
  });
}

}  // namespace gpumux::softgpu
