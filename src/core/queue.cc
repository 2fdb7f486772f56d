// SPDX-License-Identifier: Apache-2.0
#include "core/queue.h"

#include <algorithm>

namespace gpumux::core {

namespace {

using Time = Forecast::Time;

// What those ahead leave of the GPUs that they wait for.
class Kept {
 public:
  explicit Kept(const Situation& situation)
      : now_(situation.now),
        forecast_(situation.gpus, situation.running, situation.now, Forecast::Charge::kAsNow) {}

  void For(const Wait& wait) {
    const auto start = forecast_.Earliest(wait.needs, not_before_);
    for (const gpu::Uuid& gpu : wait.wants) {
      const auto [it, first] = free_until_.try_emplace(gpu, start);
      if (!first)
        it->second = start && it->second ? std::optional(std::min(*start, *it->second)) : std::nullopt;
      // Those behind cannot have it earlier either: so they keep as much for it, and not more.
      if (start) not_before_[gpu] = std::max(not_before_[gpu], *start);
    }
  }

  // The GPUs that `request` must leave alone.
  std::set<gpu::Uuid> From(const Request& request) const {
    std::set<gpu::Uuid> taken;
    for (const auto& [gpu, until] : free_until_) {
      const bool ends_in_time =
          request.time_limit && until && now_ + *request.time_limit + kEndingTakes <= *until;
      if (!ends_in_time) taken.insert(gpu);
    }
    return taken;
  }

 private:
  Time now_;
  Forecast forecast_;
  std::map<gpu::Uuid, std::optional<Time>> free_until_;  // nullopt: not at all
  std::map<gpu::Uuid, Time> not_before_;
};

}  // namespace

bool Queue::Push(Request request) {
  if (waiting_.size() >= kMaxWaiting) return false;
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& other) {
    return other.request.priority < request.priority;
  });
  Waiting waiting;
  waiting.request = std::move(request);
  waiting_.insert(at, std::move(waiting));
  return true;
}

bool Queue::Remove(uint64_t id) {
  return std::erase_if(waiting_, [&](const Waiting& w) { return w.request.id == id; }) > 0;
}

void Queue::Reorder(const Policy& policy) {
  for (Waiting& waiting : waiting_)
    waiting.request.priority = PriorityOf(policy, waiting.request.user, waiting.request.groups);
  std::sort(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) {
    return std::pair(-int64_t{a.request.priority}, a.request.id) <
           std::pair(-int64_t{b.request.priority}, b.request.id);
  });
}

std::optional<Queue::Outcome> Queue::Next(const Situation& situation) {
  Kept kept(situation);
  const QuotaBook quotas(situation.policy, situation.running);
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const Request& request = it->request;
    Decision decision = Admit(request, situation.gpus, kept.From(request),
                              {situation.policy.fill, quotas.BoundsOf(request.user, request.groups)});
    if (Wait* wait = std::get_if<Wait>(&decision)) {
      it->reason = wait->reason;
      it->wait = std::move(*wait);
      kept.For(it->wait);
      continue;
    }
    if (const Error* error = std::get_if<Error>(&decision);
        error && error->code == Code::kUnavailable && !it->reason.empty()) {
      // A GPU that does not answer now: who waits already waits for that too.
      it->reason = error->message;
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
