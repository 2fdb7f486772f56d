// SPDX-License-Identifier: Apache-2.0
//
// The exported names of this library, in the order of front.S.
namespace gpumux::softgpu {

extern const char* const kFrontNames[];
const char* const kFrontNames[] = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) #symbol,
#define GPUMUX_NVML_ENTRY(symbol) #symbol,
#include FRONT_LIST
};

}  // namespace gpumux::softgpu
