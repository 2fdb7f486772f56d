// SPDX-License-Identifier: Apache-2.0
//
// What /metrics tells of tenants that are gone. In memory: a daemon that starts begins
// at zero, as counters may. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/metrics_text.h"

namespace gpumux::daemon {

// Counters of one tenant at one moment. Most of them come from pages that its processes can
// write: any values, and they may go back.
struct TenantCounters {
  uint64_t own_limit = 0, device_full = 0, own_part = 0;  // refusals
  uint64_t turns = 0;
  uint64_t gate_closed_ns = 0;
  uint64_t gate_forced = 0;
  std::vector<std::pair<size_t, uint64_t>> gpu_ns = {};  // by Machine's index, each once
};

class MetricsTotals {
 public:
  static const std::array<double, 14> kCompletionBounds;  // seconds
  static const std::array<double, 12> kWaitBounds;

  void Granted(double waited_seconds) { queue_wait_.Observe(waited_seconds); }
  // What it has by now: its part of the totals never gets less.
  void Look(const std::string& id, const TenantCounters& now);
  // It is gone. Of a reservation no completion time is kept: nobody asked for an end.
  void Ended(const std::string& id, std::string_view outcome, double completion_seconds, bool reservation);

  uint64_t own_limit() const { return own_limit_; }
  uint64_t device_full() const { return device_full_; }
  uint64_t own_part() const { return own_part_; }
  uint64_t turns() const { return turns_; }
  double gate_closed_seconds() const { return static_cast<double>(gate_closed_ns_) / 1e9; }
  uint64_t gate_forced() const { return gate_forced_; }
  double GpuSeconds(size_t gpu) const;
  const std::map<std::string, uint64_t, std::less<>>& ended() const { return ended_; }
  const Histogram& completion() const { return completion_; }
  const Histogram& queue_wait() const { return queue_wait_; }

 private:
  std::map<std::string, TenantCounters> seen_;  // of those that live
  uint64_t own_limit_ = 0, device_full_ = 0, own_part_ = 0, turns_ = 0, gate_closed_ns_ = 0, gate_forced_ = 0;
  std::map<size_t, uint64_t> gpu_ns_;
  std::map<std::string, uint64_t, std::less<>> ended_;
  Histogram completion_{kCompletionBounds}, queue_wait_{kWaitBounds};
};

// a + b, or the most that there is.
constexpr uint64_t SaturatingAdd(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

}  // namespace gpumux::daemon
