// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sim/slab_layout.h"

namespace gpumux::sim {

// Device memory that the driver takes for objects of its own, measured on an
// H200 (docs/results). It grows with the most that a context had at once and
// stays until the context ends.

// Four streams share a page, and some forty share another; the first finds
// both there.
constexpr uint64_t BytesOfStreams(uint64_t most) {
  return most == 0 ? 0 : ((most + 2) / 4 + (most + 6) / 42) * kPageBytes;
}

// Nodes in a row of executable graphs; what a context has suffices for some 350.
constexpr uint64_t BytesOfGraphNodes(uint64_t most) {
  constexpr uint64_t kNodeBytes = 2412, kThere = 838860;
  const uint64_t bytes = most * kNodeBytes;
  return bytes > kThere ? (bytes - kThere) / kPageBytes * kPageBytes : 0;
}

// A green context; each takes its own, and nothing of it comes back before the
// primary context ends. Three points were measured, 32 SMs (4 MiB, the first of a
// context 6), 100 and 132 (6 MiB); where between them the step is, nobody has looked.
constexpr uint64_t PagesOfGreenContext(unsigned sms) { return sms <= 64 ? 2 : 3; }

}  // namespace gpumux::sim
