// SPDX-License-Identifier: Apache-2.0
#include "history/outcome.h"

#include <array>

namespace gpumux::history {

namespace {

struct Named {
  Outcome outcome;
  std::string_view name;
};
constexpr std::array kOutcomes = {Named{Outcome::kCompleted, "completed"},
                                  Named{Outcome::kFailed, "failed"},
                                  Named{Outcome::kKilled, "killed"},
                                  Named{Outcome::kOutOfMemory, "out-of-memory"},
                                  Named{Outcome::kNeighbourFault, "neighbour-fault"},
                                  Named{Outcome::kOwnFault, "own-fault"},
                                  Named{Outcome::kUnknownFault, "unknown-fault"},
                                  Named{Outcome::kMpsServer, "mps-server"},
                                  Named{Outcome::kStopped, "stopped"},
                                  Named{Outcome::kTimeLimit, "time-limit"},
                                  Named{Outcome::kNotEnforced, "not-enforced"},
                                  Named{Outcome::kNotStarted, "not-started"},
                                  Named{Outcome::kReleased, "released"},
                                  Named{Outcome::kUnknown, "unknown"}};

}  // namespace

std::string_view Name(Outcome outcome) {
  for (const Named& named : kOutcomes)
    if (named.outcome == outcome) return named.name;
  return "unknown";
}

std::vector<std::string_view> OutcomeNames() {
  std::vector<std::string_view> names;
  for (const Named& named : kOutcomes) names.push_back(named.name);
  return names;
}

std::optional<Outcome> ParseOutcome(std::string_view name) {
  for (const Named& named : kOutcomes)
    if (named.name == name) return named.outcome;
  return std::nullopt;
}

}  // namespace gpumux::history
