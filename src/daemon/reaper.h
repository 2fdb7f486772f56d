// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "base/clock.h"
#include "daemon/monitor.h"

namespace gpumux::daemon {

// Notices the death of tenants' processes by their pidfds and returns their
// bytes once NVML shows that the driver has them back.
class Reaper {
 public:
  Reaper(Machine& machine, Tenants& tenants, Monitor& monitor, EventLoop& loop, const Clock& clock)
      : machine_(machine), tenants_(tenants), monitor_(monitor), loop_(loop), clock_(clock) {}

  // Bytes of this tenant came back: parked asks and the queue may go on, and
  // the tenant may have ended. It may not be destroyed inside of the call.
  std::function<void(Tenant&)> on_returned;

  // A process has died; its bytes are not back yet. And: they are.
  std::function<void(Tenant&, Member&)> on_died, on_freed;

  // Makes a living process a member, with an account on each GPU of the
  // tenant. kNotFound: it is dead; kDenied: the tenant has too many processes.
  Result<Member*> Adopt(Tenant& tenant, const ProcessName& process);

  // A process of the tenant is dead and the loop has not come to it yet.
  bool DeathUnnoticed(const Tenant& tenant) const;

 private:
  void Died(Tenant& tenant, Member& member);
  void Sweep();
  void Return(Tenant& tenant, core::ProcessKey key);

  Machine& machine_;
  Tenants& tenants_;
  Monitor& monitor_;
  EventLoop& loop_;
  const Clock& clock_;
  EventLoop::Watch sweep_timer_;
};

}  // namespace gpumux::daemon
