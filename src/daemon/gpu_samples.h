// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/clock.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"
#include "history/store.h"

namespace gpumux::daemon {

// The ledger of each GPU as it is now, for the history.
std::vector<history::GpuSample> SampleGpus(const Machine& machine, const Tenants& tenants,
                                           const Clock& clock);

}  // namespace gpumux::daemon
