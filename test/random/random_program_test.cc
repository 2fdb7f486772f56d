// SPDX-License-Identifier: Apache-2.0
//
// Random programs of several processes against a simple model (world.h).
#include <gtest/gtest.h>

#include "trial.h"

namespace gpumux::test {
namespace {

TEST(RandomPrograms, KeepTheBooksExact) {
  World world;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    if (const auto failure = Try(world, seed, 60)) FAIL() << *failure;
  }
}

}  // namespace
}  // namespace gpumux::test
