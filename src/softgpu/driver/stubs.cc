// SPDX-License-Identifier: Apache-2.0
//
// Every entry point of the driver, as a weak definition: what has no strong one
// elsewhere in this library answers CUDA_ERROR_NOT_SUPPORTED. Its parameters do
// not matter, since it reads none.
#define GPUMUX_ENTRY(stem, version, flavour, symbol)                    \
  extern "C" __attribute__((weak, visibility("default"))) int symbol(); \
  extern "C" int symbol() { return 801; }
#include "gpu/entry_points.inc"
