// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <set>
#include <string>

#include "base/clock.h"
#include "daemon/monitor.h"
#include "gpumux/abi/session.h"

namespace gpumux::daemon {

// Answers processes that ask for credit or for room for a context. What does
// not fit, but would if calls under way were cancelled or the dead had returned
// their bytes, is parked and tried again until that is known.
class CreditDesk {
 public:
  struct Answer {
    uint32_t reason = GPUMUX_REASON_NONE;  // NONE: granted
    uint64_t charged_bytes = 0;            // for a context
    uint64_t limit_bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t promisable_bytes = 0;
  };

  struct Ask {
    uint64_t session = 0;     // for Forget
    uint32_t request_id = 0;  // of its guard
    std::string tenant;
    core::ProcessKey process = 0;
    unsigned slot = 0;
    bool context = false;
    uint64_t bytes = 0;   // not for a context, whose cost is known
    bool reclaim = true;  // others may be asked for what they cache
    // False: the asker is gone, and what was granted is taken back.
    std::function<bool(const Answer&)> reply;
  };

  CreditDesk(Machine& machine, Tenants& tenants, Monitor& monitor, EventLoop& loop, const Clock& clock)
      : machine_(machine), tenants_(tenants), monitor_(monitor), loop_(loop), clock_(clock) {}

  // Asked before a refusal: is a process of the tenant dead without the daemon
  // having come to it? Its bytes are about to return.
  std::function<bool(const Tenant&)> death_unnoticed;
  // After it was told.
  std::function<void(Tenant&)> on_refused;

  // Asked before a refusal too: is memory that others only cache on its way?
  // `own_limit`: it is the tenant's limit that is in the way, not the GPU.
  std::function<bool(const Tenant&, core::ProcessKey, size_t gpu_index, uint64_t missing_bytes,
                     bool own_limit)>
      make_room;

  void Submit(Ask ask);
  // Parked asks of a session that hung up are dropped.
  void Forget(uint64_t session);
  // Bytes came back: parked asks are tried at once.
  void Retry();
  size_t parked() const { return parked_.size(); }
  // An ask of this process is parked.
  bool Waits(core::ProcessKey process) const { return waiting_.contains(process); }

 private:
  struct Parked {
    Ask ask;
    Time since;
  };
  enum class Outcome { kDone, kLater };
  // What may still be waited for before a refusal.
  struct Patience {
    bool calls;  // under way, and bytes of the dead
    bool room;   // that others make
  };

  Outcome Try(const Ask& ask, Patience patience);
  bool WorthWaiting(const Ask& ask, const Tenant& tenant, size_t gpu_index, uint64_t bytes,
                    core::Verdict verdict, Patience patience);
  void Refuse(const Ask& ask, uint32_t reason);
  // Why, for people.
  void Note(const Ask& ask, uint32_t reason);
  void Granted(const Ask& ask, uint64_t charged_bytes, uint64_t credit_bytes, uint64_t slack_bytes);

  Machine& machine_;
  Tenants& tenants_;
  Monitor& monitor_;
  EventLoop& loop_;
  const Clock& clock_;
  std::list<Parked> parked_;
  std::multiset<core::ProcessKey> waiting_;  // of those parked
  EventLoop::Watch timer_;
};

}  // namespace gpumux::daemon
