// SPDX-License-Identifier: Apache-2.0
//
// Who waits for GPUs, in which order they start. First come, first served: a
// request behind another that waits may start only on GPUs which none of those
// ahead could be given. Pure; one thread.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "core/admission.h"

namespace gpumux::core {

class Queue {
 public:
  // Beyond this many a newcomer is refused: every change of a GPU judges them all.
  static constexpr size_t kMaxWaiting = 1024;

  struct Waiting {
    Request request;
    std::string reason;  // as of the last Next()
  };

  struct Outcome {
    Request request;
    std::variant<Placement, Error> decision;
  };

  // False: full.
  bool Push(Request request);
  // Hung up or timed out.
  bool Remove(uint64_t id);

  // The first request that can start or must be refused, taken out of the
  // queue; nullopt when all wait. The caller applies it and asks again with a
  // new snapshot. Brings the reasons up to date.
  std::optional<Outcome> Next(const std::vector<GpuSnapshot>& gpus);

  const std::deque<Waiting>& waiting() const { return waiting_; }
  // 1 is the head; 0: not here.
  size_t Position(uint64_t id) const;

 private:
  std::deque<Waiting> waiting_;
};

}  // namespace gpumux::core
