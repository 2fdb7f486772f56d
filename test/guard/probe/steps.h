// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::probe {

struct Step {
  std::string name;
  std::function<cuda::CUresult()> run;
};

// Prints, for each step, the driver's code, by how much the told free memory
// fell and by how much the device's own figure for the process rose.
int Steps(const std::vector<Step>& steps);

}  // namespace gpumux::probe
