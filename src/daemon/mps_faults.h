// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/culprit.h"
#include "daemon/events.h"
#include "daemon/mps_service.h"

namespace gpumux::daemon {

// Whose fault it was that the work of an MPS server's clients is lost, and who
// lost it (docs/design/mps.md).
class MpsFaults {
 public:
  MpsFaults(MpsService& mps, Machine& machine, Tenants& tenants, EventLog& events, const Clock& clock)
      : mps_(mps), machine_(machine), tenants_(tenants), events_(events), clock_(clock) {}

  // Its work is lost, and why.
  std::function<void(const Tenant& tenant)> on_marked;

  // A process of a tenant is dead; its page is still there.
  void NoteDeath(Tenant& tenant, const Member& member);
  // Nothing holds the dead process's descriptors any more.
  void NoteLetGo(const Member& member);
  // Marks the tenants that lost work (Tenant::lost_work), and names the culprit.
  void WorkIsLost(const MpsDomain& domain, bool fault);
  // Why a program that was tenant `before`, of this user, is started apart from the
  // server: nobody knows whether a fault was its own. Empty: it need not be.
  std::string WhyApart(const std::string& before, uid_t owner) const;
  // A tenant's program failed: was that a fault which nobody has noticed yet?
  // True: that is being asked; `go_on` is called when it is known. Asks once.
  bool Enquire(Tenant& tenant, std::function<void()> go_on);

 private:
  // A process that is or was a client, as long as it matters.
  struct Client {
    std::string tenant, name;  // the tenant's id and name
    uid_t owner = 0;
    ProcessName process;
    Time died{};        // 0: lives
    Time hold{};        // how long its descriptors are held from then on
    Time let_go{};      // the driver has nothing of it since; 0: it has, or that is not known
    bool lost = false;  // what was held of it, with the keeper
    bool busy = false;
    bool ended_well = false;  // without work under way: its end tears nothing down
    uint32_t error = 0;
    Time error_at{};
    gpu::Uuid gpu;
  };
  Client Look(const Tenant& tenant, const Member& member) const;
  std::vector<Client> ClientsOf(const MpsDomain& domain);
  core::Culprit Judge(const std::vector<Client>& clients) const;
  // A process that ran apart from the server had an error that lasts: its own.
  void NoteFaultApart(Tenant& tenant, const Member& member);
  void Suspect(const std::set<std::string>& tenants);
  // `by`: of the culprit; null: nobody is named.
  void Mark(const std::vector<Client>& clients, const core::Culprit& culprit, const Client* by, bool fault);

  MpsService& mps_;
  Machine& machine_;
  Tenants& tenants_;
  EventLog& events_;
  const Clock& clock_;
  std::deque<Client> dead_;
  // Tenants that lost work by a fault of nobody knows whom: when they did.
  struct Suspicion {
    uid_t owner = 0;
    Time since{};
    std::chrono::system_clock::time_point wall{};
    size_t of = 0;  // so many were suspects
  };
  std::map<std::string, Suspicion> suspects_;
};

}  // namespace gpumux::daemon
