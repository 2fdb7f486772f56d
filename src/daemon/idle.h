// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/clock.h"
#include "core/policy.h"
#include "daemon/events.h"
#include "daemon/machine.h"
#include "daemon/reclaim.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// Looks once a second at who holds memory and launches nothing, and does about it
// what the policy says. By launches, which the guards count: a kernel that runs is
// not seen, copies alone are no work.
class IdleWatch {
 public:
  IdleWatch(const Machine& machine, Tenants& tenants, Reclaim& reclaim, EventLog& events, const Clock& clock,
            const core::Policy& policy)
      : machine_(machine),
        tenants_(tenants),
        reclaim_(reclaim),
        events_(events),
        clock_(clock),
        policy_(policy) {}

  void Tick();

 private:
  void Look(Tenant& tenant);
  void Act(Tenant& tenant);

  const Machine& machine_;
  Tenants& tenants_;
  Reclaim& reclaim_;
  EventLog& events_;
  const Clock& clock_;
  const core::Policy& policy_;
};

}  // namespace gpumux::daemon
