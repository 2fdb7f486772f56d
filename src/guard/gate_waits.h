// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/gate.h"

namespace gpumux::guard {

// What is launched into the stream from now on waits until the gate is open: on the GPU, or here
// where the driver refuses that. `told`: where the stream's segments are told of, which begin with
// number `segment` now; null: nowhere. `may_ask`: the stream may be asked whether it is
// complete. Calls the driver; without locks.
void WaitAtGate(gpumux_gate_page* page, cuda::CUstream stream, const gpumux_gate_segments* told,
                uint64_t segment, bool may_ask);

}  // namespace gpumux::guard
