// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

namespace gpumux::guard {

// How much device memory the global variables of a module image take, so far as
// the image says it openly.
struct ImageGlobals {
  bool known;      // false: compressed or of a kind that is not understood
  uint64_t bytes;  // sum of the variables
};

// `image` as cuModuleLoadData takes it: PTX text, a cubin (ELF), a fat binary or
// its wrapper. Reads no further than the image's own headers say, as the driver
// will.
ImageGlobals GlobalsOf(const void* image);

// The text of a PTX image; for tests, and for images that a file holds.
uint64_t GlobalsOfPtx(const char* text);

}  // namespace gpumux::guard
