// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics_totals.h"

#include <algorithm>

namespace gpumux::daemon {

namespace {

constexpr double kMinute = 60, kHour = 3600, kDay = 86400;

void Take(uint64_t now, uint64_t& seen, uint64_t& total) {
  if (now <= seen) return;
  total = SaturatingAdd(total, now - seen);
  seen = now;
}

}  // namespace

const std::array<double, 14> MetricsTotals::kCompletionBounds = {
    1,         5,         15,        kMinute,   2 * kMinute, 5 * kMinute, 15 * kMinute,
    kHour / 2, 1 * kHour, 2 * kHour, 4 * kHour, 12 * kHour,  1 * kDay,    3 * kDay};

const std::array<double, 12> MetricsTotals::kWaitBounds = {0.1,       1,           5,           15,
                                                           kMinute,   2 * kMinute, 5 * kMinute, 15 * kMinute,
                                                           kHour / 2, 1 * kHour,   4 * kHour,   1 * kDay};

void MetricsTotals::Look(const std::string& id, const TenantCounters& now) {
  TenantCounters& seen = seen_[id];
  Take(now.own_limit, seen.own_limit, own_limit_);
  Take(now.device_full, seen.device_full, device_full_);
  Take(now.own_part, seen.own_part, own_part_);
  Take(now.turns, seen.turns, turns_);
  Take(now.gate_closed_ns, seen.gate_closed_ns, gate_closed_ns_);
  Take(now.gate_forced, seen.gate_forced, gate_forced_);
  for (const auto& [gpu, ns] : now.gpu_ns) {
    auto of_gpu = std::ranges::find(seen.gpu_ns, gpu, [](const auto& each) { return each.first; });
    if (of_gpu == seen.gpu_ns.end()) of_gpu = seen.gpu_ns.insert(of_gpu, {gpu, 0});
    Take(ns, of_gpu->second, gpu_ns_[gpu]);
  }
}

void MetricsTotals::Ended(const std::string& id, std::string_view outcome, double completion_seconds,
                          bool reservation) {
  seen_.erase(id);
  ++ended_[std::string(outcome)];
  if (!reservation) completion_.Observe(completion_seconds);
}

double MetricsTotals::GpuSeconds(size_t gpu) const {
  const auto it = gpu_ns_.find(gpu);
  return it == gpu_ns_.end() ? 0 : static_cast<double>(it->second) / 1e9;
}

}  // namespace gpumux::daemon
