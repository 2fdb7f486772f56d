// SPDX-License-Identifier: Apache-2.0
//
// The guard's threads in a process with a gate page.
//
//   opener    makes no CUDA call, takes no lock of the launching path: whatever the
//             program is blocked in, its gate is repaired, opened for the minimum, and
//             freed of owners that are dead. Of processes that others may gate.
//   watcher   asks streams whether they are complete. May block in the driver as the program
//             does. Of owners, and of processes that take turns.
//   asker     asks the daemon for pages, and notices that it is gone. May wait for it.
#pragma once

#include <stdint.h>

#include "guard/thread.h"

namespace gpumux::guard {

// Those that are needed and do not run yet.
// May be called as often as one likes: a thread that could not be made is tried again now and then.
void StartGateThreads();
bool OpenerRuns();
// The process ends: the driver is not called any more.
bool GateHasEnded();
// The process ends: its gate is open for good, so that what is queued can end.
void EndGate();
void ForgetGateThreads();

// For the watcher (gate.cc): launches so far; whether work is not known to be complete; asks the
// streams, and says whether all of it is now.
uint64_t GateLaunches();
bool GateIsDirty();
bool LookAtStreams();
bool NobodyInStreams();
// A hint that was not taken back, and without work.
void DropStaleHint();

}  // namespace gpumux::guard
