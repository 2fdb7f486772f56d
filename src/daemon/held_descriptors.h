// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "daemon/events.h"
#include "daemon/keeper_link.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"
#include "gpumux/abi/session.h"

namespace gpumux::daemon {

// How long descriptors of GPUs outlive their process.
struct HoldTimes {
  Time least = std::chrono::seconds(3);
  Time most = std::chrono::seconds(60);

  // Three times what the work under way is expected to take; short where there is none.
  Time For(const WorkWords& work) const;
  // The same of a process that lives. It may launch more before it dies without our seeing it.
  Time WhileItLives(const WorkWords& work) const { return std::max(For(work), least); }
};

// What processes under MPS have open of GPUs, held beyond their deaths by the
// keeper, so that the driver does not tear their work down while it runs and their
// neighbours with it (docs/design/mps.md, "Deaths"). Nothing stays open here.
//
//   guard: a round of messages ──▶ Receive ──▶ keeper: group "devices PID START …"
//                                              the whole round is there: the one before is released
//   process dies ──▶ keeper lets go after the time that it was told last
//                └─▶ Died: the time by what the process was doing at its end
class HeldDescriptors {
 public:
  HeldDescriptors(Machine& machine, Tenants& tenants, KeeperLink& keeper, EventLog& events,
                  const Clock& clock, const HoldTimes& times)
      : machine_(machine),
        tenants_(tenants),
        keeper_(keeper),
        events_(events),
        clock_(clock),
        times_(times) {}

  // A message of the process's guard. False: it is none that a guard sends.
  bool Receive(Tenant& tenant, Member& member, const gpumux_hold_descriptors& message,
               const std::vector<UniqueFd>& fds);
  // The process lives and has executed another program.
  void ProgramGone(Tenant& tenant, Member& member);
  void Died(Tenant& tenant, Member& member);
  // The driver has the dead process's memory back.
  void Freed(const Tenant& tenant, const Member& member);
  // The keeper has died, and what it held is closed.
  void KeeperGone();
  // The keeper may know nothing: everybody shall send again.
  void CallAgain();
  // Times that have changed, and programs that went without a word.
  void Tick();

  // Nothing of a dead process is held any more.
  std::function<void(const Member& member)> on_let_go;

 private:
  void StartRound(Member& member, uint32_t count);
  // One message's to the keeper. False: it has not got them.
  bool Pass(const Tenant& tenant, Member& member, const gpumux_hold_descriptors& message,
            const std::vector<UniqueFd>& fds);
  void EndRound(Member& member);
  // Now, or when the keeper can be told.
  void Release(const std::string& group);
  // More than the keeper has room for?
  bool IsFull() const;
  // Tells the keeper. False: it does not know of all.
  bool LingerFor(const HeldOfProcess& held, Time hold, bool dead);
  bool LeftByEarlierDaemon(const ProcessName& process) const;
  std::string NewGroup(const Member& member);

  Machine& machine_;
  Tenants& tenants_;
  KeeperLink& keeper_;
  EventLog& events_;
  const Clock& clock_;
  const HoldTimes& times_;
  std::vector<std::string> lingering_;   // groups that an earlier daemon left in the keeper
  std::vector<std::string> unreleased_;  // groups that it may have and shall not
};

}  // namespace gpumux::daemon
