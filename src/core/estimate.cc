// SPDX-License-Identifier: Apache-2.0
//
// By when a request that waits starts at the latest. Only what the time limits
// of those that run, and of those ahead, prove.
#include <fmt/format.h>

#include <algorithm>

#include "core/queue.h"

namespace gpumux::core {

namespace {

using Time = Forecast::Time;

std::string NameOf(const Request& request) {
  return request.name.empty() ? fmt::format("request {}", request.id) : request.name;
}

// "serve", "serve and 2 more"
std::string List(const std::vector<std::string>& names) {
  return names.size() == 1 ? names[0] : fmt::format("{} and {} more", names[0], names.size() - 1);
}

// The most that each GPU may come to hold of it.
std::map<gpu::Uuid, std::optional<uint64_t>> MostBytes(const Request& request,
                                                       const std::vector<GpuSnapshot>& gpus) {
  std::map<gpu::Uuid, std::optional<uint64_t>> most;
  if (!request.mem) return most;
  for (const GpuSnapshot& gpu : gpus)
    most[gpu.uuid] = BytesOf(request.mem_limit.value_or(*request.mem), gpu.UsableBytes());
  return most;
}

// What all requests that wait under one quota would add to its use.
struct Asked {
  uint64_t guaranteed_bytes = 0;
  size_t tenants = 0;
  std::set<gpu::Uuid> gpus;

  void Add(const Needs& needs) {
    uint64_t most = 0;
    for (const auto& [gpu, bytes] : needs.bytes) {
      most = std::max(most, bytes);
      gpus.insert(gpu);
    }
    for (size_t i = 0; i < needs.gpu_count; ++i)
      guaranteed_bytes = guaranteed_bytes + most < most ? UINT64_MAX : guaranteed_bytes + most;
    ++tenants;
  }

  bool FitsInto(const Bound& bound) const {
    if (!bound.HasRoomFor(guaranteed_bytes)) return false;
    if (bound.quota.tenants && bound.use.tenants + tenants > *bound.quota.tenants) return false;
    std::set<gpu::Uuid> all = bound.use.gpus;
    all.insert(gpus.begin(), gpus.end());
    return !bound.quota.gpus || all.size() <= *bound.quota.gpus;
  }
};

// On whom it depends, when there is no time.
std::string WhyUnknown(const Needs& needs, const Situation& situation) {
  std::vector<std::string> endless;
  for (const Running& tenant : situation.running) {
    if (tenant.ends_by && *tenant.ends_by > situation.now) continue;
    const bool there = std::any_of(tenant.on.begin(), tenant.on.end(),
                                   [&](const auto& on) { return needs.bytes.contains(on.gpu); });
    if (there) endless.push_back(tenant.name);
  }
  if (endless.empty()) return "it depends on more than the time limits of tenants";
  return fmt::format("{} run{} without a time limit", List(endless), endless.size() == 1 ? "s" : "");
}

// Walks through the queue, and keeps what the requests passed will have done.
class Planner {
 public:
  Planner(const Situation& situation, const std::deque<Queue::Waiting>& all)
      : situation_(situation),
        quotas_(situation.policy, situation.running),
        plan_(situation.gpus, situation.running, situation.now, Forecast::Charge::kAtMost) {
    for (const Queue::Waiting& waiting : all) {
      const Request& request = waiting.request;
      asked_of_["user " + request.user].Add(waiting.wait.needs);
      for (const std::string& group : request.groups) {
        if (situation.policy.groups.contains(group)) asked_of_["group " + group].Add(waiting.wait.needs);
      }
    }
  }

  Estimate Next(const Queue::Waiting& waiting) {
    Estimate estimate = Judge(waiting);
    const Needs& needs = waiting.wait.needs;
    const bool sure = estimate.at_the_latest && !HasChoice(needs);
    for (const auto& [gpu, bytes] : needs.bytes) {
      if (sure)
        not_before_[gpu] = std::max(not_before_[gpu], *estimate.at_the_latest);
      else
        unsure_.try_emplace(gpu, NameOf(waiting.request));
    }
    if (sure) {
      std::optional<Time> ends_by;
      if (waiting.request.time_limit)
        ends_by = *estimate.at_the_latest + *waiting.request.time_limit + kEndingTakes;
      plan_.Add(needs, MostBytes(waiting.request, situation_.gpus), ends_by);
    }
    return estimate;
  }

 private:
  static bool HasChoice(const Needs& needs) { return needs.bytes.size() > needs.gpu_count; }

  Estimate Judge(const Queue::Waiting& waiting) {
    const Needs& needs = waiting.wait.needs;
    // Nothing is kept for it meanwhile, so others may be in its way then.
    if (waiting.wait.for_quota) return {{}, "its quota is in use"};
    // Would its quotas hold if all that wait under them ran at once? Else one of
    // those may start first and use them up.
    for (const Bound& bound : quotas_.BoundsOf(waiting.request.user, waiting.request.groups)) {
      if (!asked_of_[bound.whose].FitsInto(bound)) return {{}, "its quota may be in use by then"};
    }
    // Those ahead may start earlier and elsewhere than planned if they have a choice.
    for (const auto& [gpu, bytes] : needs.bytes) {
      if (const auto it = unsure_.find(gpu); it != unsure_.end())
        return {{}, fmt::format("nobody knows when and where {}, ahead of it, starts", it->second)};
    }
    if (const auto time = plan_.Earliest(needs, not_before_)) return {time, {}};
    return {{}, WhyUnknown(needs, situation_)};
  }

  const Situation& situation_;
  QuotaBook quotas_;
  Forecast plan_;
  std::map<std::string, Asked> asked_of_;    // by whose quota it is
  std::map<gpu::Uuid, Time> not_before_;     // those passed have started by then
  std::map<gpu::Uuid, std::string> unsure_;  // by whom: it may be taken at any time
};

}  // namespace

void Queue::MakeEstimates(const Situation& situation) {
  Planner planner(situation, waiting_);
  for (Waiting& waiting : waiting_) waiting.estimate = planner.Next(waiting);
}

}  // namespace gpumux::core
