// SPDX-License-Identifier: Apache-2.0
#include "tui/model.h"

#include <algorithm>
#include <set>
#include <utility>

namespace gpumux::tui {
namespace {

constexpr std::string_view kKeys = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
constexpr char kNoKey = '*';

template <typename T>
void Push(std::deque<T>& list, T value, size_t most) {
  list.push_back(std::move(value));
  while (list.size() > most) list.pop_front();
}

}  // namespace

std::optional<double> GpuSecondsOf(const TenantSample& tenant) {
  if (tenant.turns) return tenant.turns->gpu_seconds;
  if (tenant.gate) return tenant.gate->busy_seconds;
  return std::nullopt;
}

std::string WhyNotCounted(const TenantSample& tenant) {
  if (GpuSecondsOf(tenant)) return "";
  if (tenant.state == "waiting") return "it waits";
  if (tenant.mode == "turns")
    return tenant.compute_reason.empty() ? "it takes no turns" : tenant.compute_reason;
  if (tenant.mode == "mps") return "kernels of several tenants run at the same time, and nobody counts whose";
  if (tenant.mode == "exclusive") return "no neighbour to share with, so nobody counts";
  return "the driver switches between programs, and does not tell when";
}

bool IsOn(const TenantSample& tenant, const GpuSample& gpu) {
  return std::any_of(tenant.gpus.begin(), tenant.gpus.end(),
                     [&](const TenantGpuSample& on) { return on.uuid == gpu.uuid; });
}

const History& Model::Of(const std::string& tenant) const {
  static const History kNone;
  const auto it = tracked_.find(tenant);
  return it == tracked_.end() ? kNone : it->second.history;
}

char Model::FreeKey() const {
  std::set<char> taken;
  for (const auto& [id, tracked] : tracked_) taken.insert(tracked.history.key);
  for (const char key : kKeys) {
    if (!taken.contains(key)) return key;
  }
  return kNoKey;
}

// `seconds`: since the sample before; nullopt: there is none that counts.
void Model::Follow(const TenantSample& tenant, std::optional<double> seconds) {
  auto [it, fresh] = tracked_.try_emplace(tenant.id);
  Tracked& tracked = it->second;
  if (fresh) tracked.history.key = kNoKey;
  if (tracked.history.key == kNoKey && tenant.state != "waiting") tracked.history.key = FreeKey();
  tracked.seen = true;
  const auto gpu_seconds = GpuSecondsOf(tenant);
  Part held;
  tracked.history.launches_per_second.reset();
  if (seconds && *seconds > 0) {
    // A count that went back is another daemon's, or of other processes.
    if (gpu_seconds && tracked.gpu_seconds && *gpu_seconds >= *tracked.gpu_seconds)
      held = std::clamp((*gpu_seconds - *tracked.gpu_seconds) / *seconds, 0.0, 1.0);
    if (tenant.launches && tracked.launches && *tenant.launches >= *tracked.launches)
      tracked.history.launches_per_second =
          static_cast<double>(*tenant.launches - *tracked.launches) / *seconds;
    Push(tracked.history.held, held, kMostSamples);
  }
  tracked.gpu_seconds = gpu_seconds;
  tracked.launches = tenant.launches;
}

void Model::Take(Sample sample, Time at) {
  // Figures of two daemons have no difference.
  const bool goes_on =
      samples_ > 0 && sample.daemon_pid && sample.daemon_pid == sample_.daemon_pid && at > at_;
  const auto seconds =
      goes_on ? std::optional(std::chrono::duration<double>(at - at_).count()) : std::nullopt;
  if (goes_on) {
    Push(spans_, at - at_, kMostSamples);
  } else {
    spans_.clear();
    for (auto& [id, tracked] : tracked_) tracked.history.held.clear();
  }
  for (auto& [id, tracked] : tracked_) tracked.seen = false;
  // Whose key is free goes first, so that it can be given anew.
  std::set<std::string> here;
  for (const TenantSample& tenant : sample.tenants) here.insert(tenant.id);
  std::erase_if(tracked_, [&](const auto& entry) { return !here.contains(entry.first); });
  for (const TenantSample& tenant : sample.tenants) Follow(tenant, seconds);
  sample_ = std::move(sample);
  at_ = at;
  lost_.clear();
  ++samples_;
}

void Model::TakeEvents(EventsSample sample) {
  for (EventSample& event : sample.events) Push(events_, std::move(event), kMostEvents);
  next_event_after_ = sample.next_after;
}

Part Model::HeldOf(const GpuSample& gpu, std::string& why) const {
  if (!sample_.daemon_pid) {
    why = "no daemon counts it";
    return std::nullopt;
  }
  double sum = 0;
  for (const TenantSample& tenant : sample_.tenants) {
    if (!IsOn(tenant, gpu) || tenant.members.empty()) continue;
    const Part held = Of(tenant.id).Last();
    if (!held) {
      why = WhyNotCounted(tenant);
      if (why.empty()) why = "needs a second sample";
      return std::nullopt;
    }
    sum += *held;
  }
  return std::min(sum, 1.0);
}

}  // namespace gpumux::tui
