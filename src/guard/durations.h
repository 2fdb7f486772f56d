// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"

namespace gpumux::guard {

// How long work takes on the GPU, by what it is, learnt while the program runs: events
// around the first launches of each, and around one of many later. Under the caller's
// lock, but for Start and End, which call the driver and may block there.

inline constexpr uint64_t kUnknownNs = 0;
// `key` is a hash of the function and its shape; not 0.
uint64_t PredictNs(uint64_t key);
// Shall this launch be measured, in the context that is current? -1: no, or there is no room.
int ReserveSample(uint64_t key, cuda::CUcontext context);
// Before the launch. False: it is not measured, and there is nothing to end.
bool StartSample(int sample, cuda::CUstream stream);
void EndSample(int sample, cuda::CUstream stream);
// Takes what measurements are complete.
void TakeSamples(cuda::CUcontext context);
// The context's events are gone.
void ForgetSamples(cuda::CUcontext context);
// The key is another function's from now on, or all are.
void ForgetWork(uint64_t key);
void ForgetAllWork();
void ForgetDurations();

}  // namespace gpumux::guard
