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
// its wrapper, whose size nobody tells. Anything may stand there, and the driver
// answers with an error: what cannot be read is unknown, not a fault.
ImageGlobals GlobalsOf(const void* image);
// The same where the size is known (a file): reads no byte beyond it. A wrapper
// points elsewhere, which a file cannot.
ImageGlobals GlobalsOf(const void* image, uint64_t bytes);

// The text of a PTX image, up to its NUL.
uint64_t GlobalsOfPtx(const char* text);

}  // namespace gpumux::guard
