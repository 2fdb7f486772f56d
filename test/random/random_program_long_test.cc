// SPDX-License-Identifier: Apache-2.0
//
// The same for minutes, each time with other seeds. GPUMUX_TEST_SEED repeats
// what a failure named, GPUMUX_TEST_SECONDS says how long.
#include <gtest/gtest.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "trial.h"

namespace gpumux::test {
namespace {

TEST(RandomProgramsLong, KeepTheBooksExact) {
  const char* chosen = std::getenv("GPUMUX_TEST_SEED");
  const char* seconds = std::getenv("GPUMUX_TEST_SECONDS");
  uint64_t seed = chosen ? std::strtoull(chosen, nullptr, 10)
                         : static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 150);
  std::printf("first seed %" PRIu64 "\n", seed);
  World world;
  unsigned programs = 0;
  for (; std::chrono::steady_clock::now() < end; ++seed, ++programs) {
    if (const auto failure = Try(world, seed, 50 + seed % 150)) FAIL() << *failure;
  }
  std::printf("%u programs\n", programs);
}

}  // namespace
}  // namespace gpumux::test
