// SPDX-License-Identifier: Apache-2.0
//
// The guard's two threads in a process with a gate page.
//
//   opener    makes no CUDA call, takes no lock of the launching path: whatever the
//             program is blocked in, its gate is repaired, opened for the minimum, and
//             freed of owners that are dead. Of processes that others may gate.
//   watcher   asks streams whether they are complete, and the daemon for pages. May block
//             in the driver as the program does. Of owners, and of processes that take turns.
#pragma once

#include <stdint.h>

#include "guard/thread.h"

namespace gpumux::guard {

// Those that are needed and do not run yet.
void StartGateThreads();
// The process ends: its gate is open for good, so that what is queued can end.
void EndGate();
void ForgetGateThreads();

// For the watcher (gate.cc): launches so far; whether work is not known to be complete; asks the
// streams, and says whether all of it is now.
uint64_t GateLaunches();
bool GateIsDirty();
bool LookAtStreams();
// A hint that was not taken back, and without work.
void DropStaleHint();

}  // namespace gpumux::guard
