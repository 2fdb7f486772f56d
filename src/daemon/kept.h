// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "daemon/keeper_link.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// What outlives this daemon: the lock socket of each GPU that has tenants, as
// long as one of their processes lives. A group is a GPU.
KeptItems WhatToKeep(const Machine& machine, const Tenants& tenants);

}  // namespace gpumux::daemon
