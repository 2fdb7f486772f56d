// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// Who has the places for clients that a GPU's MPS server has. Those that a tenant declared
// are its own, taken or not; the others are for whoever comes first. A process that gets
// none waits in its guard, which asks again (docs/design/mps.md).
class MpsPlaces {
 public:
  MpsPlaces(Machine& machine, Tenants& tenants, const Clock& clock)
      : machine_(machine), tenants_(tenants), clock_(clock) {}

  // enum gpumux_mps_place; `driver_error` as in gpumux_mps_place_request.
  uint32_t Ask(Tenant& tenant, Member& member, unsigned slot, uint32_t driver_error);
  // Forgets those who do not ask any more.
  void Tick();

 private:
  bool IsFree(const Tenant& tenant, const Member& member, unsigned slot) const;
  uint32_t Wait(const Tenant& tenant, Member::Gpu& on, bool queues, std::string reason);

  Machine& machine_;
  Tenants& tenants_;
  const Clock& clock_;
};

// By all tenants: what they declared, or have, if that is more.
unsigned PlacesTaken(const Tenants& tenants, size_t gpu_index);
// The guard has said how many contexts there are.
void SettlePlace(Member::Gpu& on);

}  // namespace gpumux::daemon
