// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "world.h"

namespace gpumux::test {

// Runs the program of this seed in `world`. Nullopt: all held; else what broke,
// cut down to the steps that it takes, each time in a world of its own.
std::optional<std::string> Try(World& world, uint64_t seed, unsigned steps);

}  // namespace gpumux::test
