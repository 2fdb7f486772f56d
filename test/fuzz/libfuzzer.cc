// SPDX-License-Identifier: Apache-2.0
//
// One parser under libFuzzer: FUZZ_TARGET is its place in the list.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const gpumux::test::FuzzTarget* const target = [] {
    for (const auto& each : gpumux::test::FuzzTargets()) {
      if (std::strcmp(each.name, FUZZ_TARGET) == 0) return &each;
    }
    std::fprintf(stderr, "no target %s\n", FUZZ_TARGET);
    __builtin_trap();
  }();
  target->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
