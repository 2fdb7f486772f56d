// SPDX-License-Identifier: Apache-2.0
//
// Initialisation, versions, and how a program finds the other entry points.
#include "softgpu/driver/api.h"
#include "softgpu/driver/driver.h"
#include "softgpu/driver/driver_version.h"
#include "softgpu/driver/proc_address.h"

namespace gpumux::softgpu {

using namespace gpumux::cuda;

GPUMUX_CU cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return Driver::Get().Init();
}

GPUMUX_CU cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = CudaVersion();
  return CUDA_SUCCESS;
}

GPUMUX_CU cuGetProcAddress_v2(const char* name, void** out, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult* status) {
  return FindEntryPoint(name, version, flags, out, status);
}

GPUMUX_CU cuGetProcAddress(const char* name, void** out, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result = FindEntryPoint(name, version, flags, out, &status);
  if (result != CUDA_SUCCESS) return result;
  return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

GPUMUX_CU cuGetExportTable(const void** table, const void*) {
  // The driver's private tables: not answered, on purpose.
  if (table == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace gpumux::softgpu
