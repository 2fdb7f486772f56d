// SPDX-License-Identifier: Apache-2.0
//
// Every name of NVML, as a weak definition: what has no strong one elsewhere in
// this library answers NVML_ERROR_NOT_SUPPORTED (or that nvmlInit is missing),
// and writes nothing. Its parameters do not matter, since it reads none.
#include "softgpu/nvml/state.h"

namespace gpumux::nvml {

static nvmlReturn_t NotSupported() {
  const nvmlReturn_t initialized = CheckInitialized();
  return initialized == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : initialized;
}

#define GPUMUX_NVML_ENTRY(symbol)                                                \
  extern "C" __attribute__((weak, visibility("default"))) nvmlReturn_t symbol(); \
  extern "C" nvmlReturn_t symbol() { return NotSupported(); }
#include "softgpu/nvml/entry_points.inc"

}  // namespace gpumux::nvml
