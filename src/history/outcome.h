// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace gpumux::history {

// How a tenant ended, in one word.
enum class Outcome {
  kCompleted,       // exit code 0
  kFailed,          // another
  kKilled,          // by a signal that gpumux did not send
  kOutOfMemory,     // failed or killed after it had been refused memory
  kNeighbourFault,  // mode mps: another's GPU fault took its work
  kOwnFault,
  kUnknownFault,
  kMpsServer,  // its server died
  kStopped,    // by somebody
  kTimeLimit,
  kNotEnforced,  // stopped by --strict
  kNotStarted,   // its program never ran
  kReleased,     // a reservation
  kUnknown,      // nobody saw its end
};
std::string_view Name(Outcome outcome);
std::vector<std::string_view> OutcomeNames();  // of all there are
std::optional<Outcome> ParseOutcome(std::string_view name);

}  // namespace gpumux::history
