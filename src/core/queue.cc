// SPDX-License-Identifier: Apache-2.0
#include "core/queue.h"

#include <algorithm>

namespace gpumux::core {

bool Queue::Push(Request request) {
  if (waiting_.size() >= kMaxWaiting) return false;
  waiting_.push_back({std::move(request), {}});
  return true;
}

bool Queue::Remove(uint64_t id) {
  return std::erase_if(waiting_, [&](const Waiting& w) { return w.request.id == id; }) > 0;
}

std::optional<Queue::Outcome> Queue::Next(const std::vector<GpuSnapshot>& gpus) {
  std::set<gpu::Uuid> taken;
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    Decision decision = Admit(it->request, gpus, taken);
    if (Wait* wait = std::get_if<Wait>(&decision)) {
      it->reason = std::move(wait->reason);
      taken.merge(wait->wants);
      continue;
    }
    Outcome outcome{std::move(it->request), Error{}};
    if (auto* placement = std::get_if<Placement>(&decision)) outcome.decision = std::move(*placement);
    if (auto* error = std::get_if<Error>(&decision)) outcome.decision = std::move(*error);
    waiting_.erase(it);
    return outcome;
  }
  return std::nullopt;
}

size_t Queue::Position(uint64_t id) const {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i].request.id == id) return i + 1;
  }
  return 0;
}

}  // namespace gpumux::core
