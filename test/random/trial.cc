// SPDX-License-Identifier: Apache-2.0
#include "trial.h"

#include <algorithm>

namespace gpumux::test {

namespace {

constexpr int kMostCuts = 30;

// Leaves out parts, large ones first, as long as what is left still fails.
std::string CutDown(Program program, std::string failure) {
  int tries = 0;
  for (size_t part = program.steps.size() / 2; part > 0 && tries < kMostCuts; part /= 2) {
    for (size_t at = 0; at < program.steps.size() && tries < kMostCuts; ++tries) {
      Program smaller = program;
      const auto first = smaller.steps.begin() + static_cast<long>(at);
      smaller.steps.erase(first, first + static_cast<long>(std::min(part, smaller.steps.size() - at)));
      if (auto still = World().Run(smaller)) {
        program = std::move(smaller);
        failure = std::move(*still);
      } else {
        at += part;
      }
    }
  }
  return "seed " + std::to_string(program.seed) + ", cut down to " + std::to_string(program.steps.size()) +
         " steps:\n" + failure;
}

}  // namespace

std::optional<std::string> Try(World& world, uint64_t seed, unsigned steps) {
  const Program program = Generate(seed, steps);
  auto failure = world.Run(program);
  if (!failure) return std::nullopt;
  return CutDown(program, std::move(*failure));
}

}  // namespace gpumux::test
