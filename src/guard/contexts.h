// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpumux/abi/cuda/driver.h"
#include "guard/driver.h"
#include "guard/lock.h"

namespace gpumux::guard {

// The primary context that a green one's handle stands for: what is allocated there
// ends with the primary. Any other context is itself.
cuda::CUcontext BaseOf(cuda::CUcontext context);

// Held across the driver's call: two threads may make a context at once. Taken
// before the locks of driver_objects.h.
extern constinit Lock g_contexts_lock;

// The rest under the lock.
bool PrimaryIsActive(cuda::CUdevice device, int slot);
// Null if none is active, or it was made behind our back.
cuda::CUcontext ActivePrimary(cuda::CUdevice device, int slot);
// One user more of the primary context. It is charged where it has to be made:
// CUDA_ERROR_OUT_OF_MEMORY if the promise does not allow that.
cuda::CUresult RetainPrimary(cuda::CUdevice device, int slot, cuda::CUcontext* context);
// A call of another kind has made one user more, or one less.
void JoinPrimary(int slot);
void LeavePrimary(cuda::CUdevice device, int slot, bool was_active);

// The primary context that a green one was made of. False: made before the guard
// was in force, or not at all.
bool PrimaryOfGreen(cuda::CUgreenCtx green, cuda::CUcontext* primary, int* slot);
// The primary context is gone, and with it the handles of its green ones.
void ForgetGreenOf(cuda::CUcontext primary);
// In the child of a fork.
void ForgetGreenContexts();

// Makes `context` current for as long as this lives.
class MadeCurrent {
 public:
  explicit MadeCurrent(cuda::CUcontext context)
      : done_(Real().cuCtxPushCurrent_v2 && Real().cuCtxPopCurrent_v2 &&
              Real().cuCtxPushCurrent_v2(context) == cuda::CUDA_SUCCESS) {}
  ~MadeCurrent() {
    cuda::CUcontext popped;
    if (done_) Real().cuCtxPopCurrent_v2(&popped);
  }
  MadeCurrent(const MadeCurrent&) = delete;
  MadeCurrent& operator=(const MadeCurrent&) = delete;

 private:
  bool done_;
};

}  // namespace gpumux::guard
