// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"
#include "gpumux/abi/session.h"

namespace gpumux::daemon {

struct GateTimes {
  Time min_open = std::chrono::milliseconds(50);  // of each second
  Time max_closed = std::chrono::seconds(1);
  Time budget = std::chrono::microseconds(100);  // of predicted work between two waits
};

// Whose gates there are, and who may close them (docs/design/gate.md). Opening and closing
// is done by the guards; here pages are made and handed out.
class Gates {
 public:
  Gates(Machine& machine, Tenants& tenants, const GateTimes& times)
      : machine_(machine), tenants_(tenants), times_(times) {}

  struct Answer {
    gpumux_gate_reply reply{};
    std::vector<int> fds;
  };
  // `own`: the page that the process has from an earlier daemon, or none. nullopt: no guard asks so.
  std::optional<Answer> Ask(Tenant& tenant, Member& member, uint32_t first, std::vector<UniqueFd>& own);
  void Died(Member& member);
  // Tenants came or went, or changed: what launches have to do, and who closes whose gate.
  void Update();

  // After each Update.
  std::function<void()> on_updated;

 private:
  using Members = std::vector<Member*>;
  Members GatesFor(const Tenant& owner) const;
  bool MayBeClosed(const Tenant& tenant) const;
  std::optional<unsigned> FreeBit(unsigned wanted);

  Machine& machine_;
  Tenants& tenants_;
  const GateTimes& times_;
  // By the id of a latency-critical tenant: the gates of its last call.
  std::map<std::string, std::vector<core::ProcessKey>> called_;
  unsigned next_bit_ = 0;
};

// The tenant's processes have gates that others may close: latency-critical ones, and the
// daemon for turns.
bool HasGate(const Tenant& tenant);

}  // namespace gpumux::daemon
