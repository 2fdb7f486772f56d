// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpumux::test {

// A random program: steps that mean something whatever came before them, so
// that any part of a program is a program too (and a failing one can be cut
// down). `actor`, `a` and `b` choose among what there is when the step comes.
enum class Kind : uint8_t {
  kAllocate,  // by family a, b bytes
  kFree,
  kFreeWrongly,
  kMap,  // or unmap, or release while mapped
  kSetLimit,
  kResetPrimary,
  kShare,  // export one's memory, import it in a sibling
  kAskFree,
  kFork,
  kExec,
  kDie,
  kBurst,  // several processes at once
};

struct Step {
  Kind kind;
  uint32_t actor;
  uint64_t a, b;
};

struct Program {
  uint64_t seed = 0;
  std::vector<Step> steps;
};

Program Generate(uint64_t seed, unsigned steps);

// Sizes around the driver's units and up to what fills a small promise.
uint64_t BytesOf(uint64_t random);

}  // namespace gpumux::test
