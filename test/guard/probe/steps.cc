// SPDX-License-Identifier: Apache-2.0
#include "steps.h"

#include <cinttypes>
#include <cstdio>

#include "driver.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

int Steps(const std::vector<Step>& steps) {
  Truth truth;
  uint64_t own = truth.Own(), free = Free();
  for (const Step& step : steps) {
    const CUresult r = step.run();
    const uint64_t own_now = truth.Own(), free_now = Free();
    std::printf("%s\t%d\t%" PRId64 "\t%" PRId64 "\n", step.name.c_str(), r,
                static_cast<int64_t>(free - free_now), static_cast<int64_t>(own_now - own));
    own = own_now;
    free = free_now;
  }
  return 0;
}

}  // namespace gpumux::probe
