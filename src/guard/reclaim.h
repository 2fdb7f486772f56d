// SPDX-License-Identifier: Apache-2.0
//
// The connection on which this process can be asked for memory that it only
// caches (gpumux_reclaim_wait). One thread waits on it, and holds no lock while it
// does; the daemon never asks while an allocation of this process waits for it.
#pragma once

#include <stdint.h>

struct gpumux_reclaim;

namespace gpumux::guard {

// Each returns an enum gpumux_result.
int WaitForReclaim(gpumux_reclaim* wanted, int timeout_ms);
int ReclaimDone(uint32_t id);
int StopReclaim();

// In the child of a fork.
void ForgetReclaim();

}  // namespace gpumux::guard
