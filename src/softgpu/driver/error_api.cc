// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/api.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {
struct Row {
  int value;
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#define GPUMUX_RESULT(name, value, text) {value, #name, text},
#include "softgpu/driver/error_codes.inc"
#undef GPUMUX_RESULT
};
const Row* Find(CUresult result) {
  for (const Row& row : kRows) {
    if (row.value == static_cast<int>(result)) return &row;
  }
  return nullptr;
}
}  // namespace

GPUMUX_CU cuGetErrorName(CUresult result, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Row* row = Find(result);
  *out = row != nullptr ? row->name : nullptr;
  return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GPUMUX_CU cuGetErrorString(CUresult result, const char** out) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Row* row = Find(result);
  *out = row != nullptr ? row->text : nullptr;
  return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpumux::softgpu
