// SPDX-License-Identifier: Apache-2.0
//
// What settings mean to those that use them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/loopback_address.h"
#include "config/configuration.h"
#include "core/policy.h"

namespace gpumux::config {

struct DaemonKeys {
  std::optional<std::chrono::milliseconds> idle_exit;
  std::optional<LogLevel> log_level;
  std::optional<int64_t> gate_budget_us;
  std::optional<std::chrono::milliseconds> gate_max_closed;
  std::optional<int64_t> gate_min_open_percent;
  std::optional<std::chrono::milliseconds> history_keep;
  std::optional<LoopbackAddress> metrics_listen;
  std::optional<bool> metrics_labels;
  std::optional<std::chrono::milliseconds> mps_hold_min, mps_hold_max, mps_idle_time;
};

DaemonKeys DaemonKeysOf(const Settings& settings);
core::Policy PolicyOf(const Settings& settings);

// An option of `run` that was set here and not on its command line.
struct RunDefault {
  std::string option;  // "--mem"
  std::string value;   // empty for an option without one
};
std::vector<RunDefault> RunDefaultsOf(const Settings& settings);

}  // namespace gpumux::config
