// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "daemon/events.h"
#include "daemon/tenants.h"
#include "daemon/turn_thread.h"

namespace gpumux::daemon {

// Of mode turns, and no more urgent than turns are: a latency-critical one runs when it wants.
bool InTurns(const Tenant& tenant);
// Another such tenant is on its GPUs, or it has a maximum: while neither is so, its
// launches cost what they cost without turns.
bool TakesTurns(const Tenant& tenant, const Tenants& tenants);

// The loop's side of turns: who takes part, what became of it. The turn thread
// does the rest, from the first tenant on that takes turns.
class TurnDesk {
 public:
  // How long turns were waited for, of all tenants so far.
  const TurnWaits& waits() const { return waits_; }

  TurnDesk(Tenants& tenants, EventLog& events, const core::Turns::Times& times)
      : tenants_(tenants), events_(events), times_(times) {}

  // Tenants or their processes came, went or changed.
  void Update();
  // Once a second: events of turns that were taken from their holders.
  void Tick();

 private:
  TurnRoster Roster();
  void Tell(Tenant& tenant);

  Tenants& tenants_;
  EventLog& events_;
  const core::Turns::Times times_;
  TurnWaits waits_;
  std::unique_ptr<TurnThread> thread_;  // before the waits are gone, it is
  std::vector<TurnTenant> told_;        // what the thread has
  uint64_t serials_ = 0;
  bool too_many_ = false;
};

}  // namespace gpumux::daemon
