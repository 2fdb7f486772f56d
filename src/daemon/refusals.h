// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/clock.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// The daemon is about to refuse `bytes` to a process of the tenant: what is so
// now is kept as the tenant's last refusal.
void NoteRefusal(Tenant& tenant, unsigned slot, core::ProcessKey process, uint64_t bytes,
                 Refusal::Cause cause, const Tenants& tenants, Machine& machine, const Clock& clock);

// Refusals that no daemon was asked about: the driver's own, and those that a
// guard decides by itself. Known by the counts in the process's page, so late by
// a reading at most; to be called at each, and before the page is given up.
void NoteUntoldRefusals(Tenant& tenant, Member& member, const Tenants& tenants, Machine& machine,
                        const Clock& clock);
void NoteUntoldRefusals(Tenants& tenants, Machine& machine, const Clock& clock);

}  // namespace gpumux::daemon
