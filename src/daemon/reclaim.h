// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/reclaim.h"
#include "daemon/events.h"
#include "daemon/machine.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

// Asks programs for memory that they only cache, before anybody is refused or
// waits for the lack of it. Who can be asked has said so (a listener); whom to
// ask is core/reclaim.h's decision.
//
// Nobody waits for a process that waits itself: its answer may need the lock
// that its allocating thread holds (docs/design/reclaim.md).
class Reclaim {
 public:
  Reclaim(Machine& machine, Tenants& tenants, EventLog& events, const Clock& clock)
      : machine_(machine), tenants_(tenants), events_(events), clock_(clock) {}

  // To a listener. False: it is gone.
  std::function<bool(uint64_t session, uint32_t ask, unsigned slot, uint64_t bytes)> send;
  // An allocation of this process waits for an answer of the daemon.
  std::function<bool(core::ProcessKey)> allocating;

  // Returns the session that listened for the process before, 0 if none did.
  uint64_t Listen(uint64_t session, Tenant& tenant, core::ProcessKey process);
  void Forget(uint64_t session);
  // The answer. False: it was not asked that.
  bool Done(uint64_t session, uint32_t ask);

  // An allocation of `process` lacks `missing_bytes`: of its tenant's limit, or
  // of the GPU. True: an answer is worth waiting for.
  bool MakeRoom(const Tenant& tenant, core::ProcessKey process, size_t gpu_index, uint64_t missing_bytes,
                bool of_own_limit);
  // For requests that wait. Returns those for which an answer is awaited.
  std::set<uint64_t> MakeRoomFor(const std::deque<core::Queue::Waiting>& waiting);

  // Each process of the tenant that can be asked now, for all that it holds on the
  // GPU where it holds the most. Returns how many were asked.
  unsigned AskForAll(const Tenant& tenant);

 private:
  struct Listener {
    std::string tenant;
    core::ProcessKey process = 0;
    core::AskRecord record;
    uint32_t ask = 0;  // the last one's id
    unsigned slot = 0;
    uint64_t committed_bytes = 0;  // when it was asked
  };
  struct Candidate {
    uint64_t session;
    unsigned slot;
    uint64_t could_give_bytes;
  };

  // What a process holds; nullopt if it is gone or not on that GPU.
  std::optional<uint64_t> CommittedBytes(const Listener& listener, unsigned slot) const;
  // Who could give something on this GPU now, or is about to. `own`: processes of
  // this tenant count with all that they hold, others with what is beyond their
  // tenant's guarantee, and with nothing if `own_only`.
  std::vector<Candidate> Candidates(size_t gpu_index, const std::string& own, bool own_only,
                                    core::ProcessKey except) const;
  bool Ask(const std::vector<Candidate>& candidates, uint64_t missing_bytes);
  bool AskOne(const Candidate& candidate, uint64_t wanted_bytes);

  Machine& machine_;
  Tenants& tenants_;
  EventLog& events_;
  const Clock& clock_;
  std::map<uint64_t, Listener> listeners_;  // by session
  uint32_t last_ask_ = 0;
};

}  // namespace gpumux::daemon
