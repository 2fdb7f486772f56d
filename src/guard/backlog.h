// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// How long the work under way may take, for the time that a dead process's
// descriptors are held: the launches that were not seen to end, times the longest
// time that one took so far. Nothing is done at a launch but what is done anyway;
// both are learnt where the program waits for its work.

// Around a call of the driver that waits. `all`: for everything that this process
// has launched, if it has one context.
class Wait {
 public:
  explicit Wait(bool all);
  cuda::CUresult Over(cuda::CUresult r);

 private:
  bool counts_;
  uint64_t launches_ = 0;
  uint64_t since_ns_ = 0;
};

// Of the null stream: for everything, as long as the program has made no other.
bool IsOnlyStream(cuda::CUstream stream);
void CountStream();
// How many contexts there are now, of all GPUs.
void CountContexts(int change);
// In the child of a fork.
void ForgetBacklog();

}  // namespace gpumux::guard
