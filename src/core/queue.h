// SPDX-License-Identifier: Apache-2.0
//
// Who waits for GPUs, in which order they start. A higher priority goes first,
// equals by arrival. A request behind another that waits may start only on GPUs
// which none of those ahead could be given, or where it ends, by its time limit,
// before any of them could start by the time limits of the tenants that run
// (docs/design/queue.md). Pure; one thread.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "core/admission.h"
#include "core/forecast.h"
#include "core/running.h"

namespace gpumux::core {

// All that a decision depends on besides the requests.
struct Situation {
  const Policy& policy;
  std::vector<GpuSnapshot> gpus;
  std::vector<Running> running = {};
  Forecast::Time now = {};
};

// By when a request starts, if nobody who is not ahead of it interferes.
struct Estimate {
  std::optional<Forecast::Time> at_the_latest;
  std::string why_not;  // without one
};

class Queue {
 public:
  // Beyond this many a newcomer is refused: every change of a GPU judges them all.
  static constexpr size_t kMaxWaiting = 1024;

  struct Waiting {
    Request request;
    std::string reason;  // as of the last Next()
    Estimate estimate;   // as of the last MakeEstimates()
    Wait wait;           // the same as `reason`, for decisions
  };

  struct Outcome {
    Request request;
    std::variant<Placement, Error> decision;
  };

  // False: full.
  bool Push(Request request);
  // Hung up or timed out.
  bool Remove(uint64_t id);

  // By the priorities that a new policy gives them.
  void Reorder(const Policy& policy);

  // The first request that can start or must be refused, taken out of the
  // queue; nullopt when all wait. The caller applies it and asks again with a
  // new situation. Brings the reasons up to date.
  std::optional<Outcome> Next(const Situation& situation);
  // Of all that wait, once Next() has said nullopt.
  void MakeEstimates(const Situation& situation);

  // In the order in which they are served.
  const std::deque<Waiting>& waiting() const { return waiting_; }
  // 1 is the head; 0: not here.
  size_t Position(uint64_t id) const;

 private:
  std::deque<Waiting> waiting_;
};

}  // namespace gpumux::core
