// SPDX-License-Identifier: Apache-2.0
//
// A fault of one client of an MPS server reaches all of its clients, and they all
// get the same error. Whose was it? Pure.
//
// Measured on an H200 (docs/results/2026-11-30-h200): the server's log and the
// kernel's Xid name clients that had done nothing, everybody gets the culprit's own
// error number (700, 716, 719), and core dumps of the GPU appear for the innocent
// as well. So only what rules all others out counts, and else nobody is accused.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace gpumux::core {

// One process that was a client when the fault was found.
struct Suspect {
  std::string tenant;
  // It is dead, nothing holds its descriptors (any more), and that began so long
  // before the first error in another process.
  std::optional<std::chrono::nanoseconds> torn_down_before;
  // May have had work on the GPU. False: it launched nothing, or nothing for so long that a
  // fault of it had been told, and waited for all of it.
  bool busy = true;
};

struct Culprit {
  std::string tenant;  // empty: nothing tells which one
  std::string why;     // a clause: "it died with work under way, and nothing held it"
};

// A death this long before may be the reason.
inline constexpr std::chrono::seconds kDeathBeforeFault{2};

Culprit FindCulprit(const std::vector<Suspect>& suspects);

}  // namespace gpumux::core
