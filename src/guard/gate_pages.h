// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/gate.h"

namespace gpumux::guard {

// This process's gate page, and those of others that it may close.

// Null: it has none yet.
gpumux_gate_page* OwnGate();
// The process that it is mapped in.
long GatePid();
// Asks the daemon where that is due: for the own page first, and again when the others have changed
// or a new daemon has come. May wait for the daemon. True: there is a page.
bool FetchGates();
bool GatesAreStale();

// The own page for the GPU: where `closed` and the segments are in its addresses, in any
// context. Registered in the current context when it is asked for first; 0: the driver refuses.
cuda::CUdeviceptr GateAddress();
// The context is gone: if it was registered there (null: anywhere), it is no more.
bool GateAddressGone(cuda::CUcontext context);

// Of the own gate, as the daemon said.
struct GateBounds {
  uint64_t min_open_ns;    // of each second
  uint64_t max_closed_ns;  // without a break
};
GateBounds Bounds();
// Predicted work of a stream between two waits.
uint64_t GateBudgetNs();

// As an owner: closes, or opens, all gates that this process may close.
bool IsOwner();
void CloseGates();
void OpenGates();

// As the opener: clears bits of the own page that no process locks, if they did
// not last time either. Returns how many.
unsigned ClearDeadOwners();

void ForgetGatePages();

}  // namespace gpumux::guard
