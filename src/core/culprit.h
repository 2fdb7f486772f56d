// SPDX-License-Identifier: Apache-2.0
//
// A fault of one client of an MPS server reaches all of its clients, and they all
// get the same error. Whose was it? Pure.
//
// Neither the server's log nor the kernel's Xid tells: on an H200 both named
// clients that had done nothing. So what the processes themselves show decides,
// and where that is not enough nobody is accused.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpumux::core {

// One process that was a client when the fault was found.
struct Suspect {
  std::string tenant;
  // Before the fault was found, and how long; with work that was under way if `busy`.
  std::optional<std::chrono::nanoseconds> died_before;
  bool busy = true;             // may have had work on the GPU; false: it is known that it had none
  uint32_t error = 0;           // the first lasting error of CUDA in it; 0: none seen yet
  bool in_every_fault = false;  // among the clients of each fault of this server, of which there were several
};

struct Culprit {
  std::string tenant;  // empty: nothing tells which one
  std::string why;     // a clause: "it died with work under way"
};

// A death this long before the fault was found may be its reason.
inline constexpr std::chrono::seconds kDeathBeforeFault{2};

Culprit FindCulprit(const std::vector<Suspect>& suspects);

}  // namespace gpumux::core
