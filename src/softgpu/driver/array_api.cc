// SPDX-License-Identifier: Apache-2.0
//
// Arrays as memory: made, described, destroyed. Copies to and from them and
// textures do not exist here yet.
#include "softgpu/driver/api.h"
#include "softgpu/driver/array.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {
CUresult Create(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Array* array = nullptr;
  if (CUresult error = Arrays::Get().Create(context, descriptor, &array); error != CUDA_SUCCESS) return error;
  *out = reinterpret_cast<CUarray>(array);
  return CUDA_SUCCESS;
}
}  // namespace

GPUMUX_CU cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  GPUMUX_REQUIRE_INIT();
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full = {};
  full.Width = descriptor->Width;
  full.Height = descriptor->Height;
  full.Format = descriptor->Format;
  full.NumChannels = descriptor->NumChannels;
  return Create(out, full);
}
GPUMUX_CU cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  GPUMUX_REQUIRE_INIT();
  if (descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Create(out, *descriptor);
}
GPUMUX_CU cuArrayDestroy(CUarray array) {
  GPUMUX_REQUIRE_CONTEXT(context);
  return Arrays::Get().Destroy(array);
}
GPUMUX_CU cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray array) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Arrays::Get().Describe(array, out);
}
GPUMUX_CU cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray array) {
  GPUMUX_REQUIRE_CONTEXT(context);
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR full = {};
  if (CUresult error = Arrays::Get().Describe(array, &full); error != CUDA_SUCCESS) return error;
  *out = {full.Width, full.Height, full.Format, full.NumChannels};
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu
