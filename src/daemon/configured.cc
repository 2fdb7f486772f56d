// SPDX-License-Identifier: Apache-2.0
#include "daemon/configured.h"

#include <algorithm>

#include "base/log.h"
#include "config/meaning.h"
#include "config/socket_group.h"
#include "config/sources.h"

namespace gpumux::daemon {

namespace {

constexpr auto kIdleOnDemand = std::chrono::seconds(30);

struct Configuration {
  config::Settings settings;
  std::optional<gid_t> socket_group;
};

Result<Configuration> Read(bool for_everyone) {
  auto loaded = config::Load(for_everyone ? config::Reader::kMachineDaemon : config::Reader::kUser);
  for (const std::string& file : loaded.files) LogInfo("configuration: {}", file);
  // A user's daemon is for nobody else.
  auto group = for_everyone ? config::SocketGroupOf(loaded.settings) : std::nullopt;
  if (!group) loaded.problems.push_back(group.error());
  for (const config::Problem& problem : loaded.problems) LogError("configuration: {}", problem.ToString());
  if (!loaded.problems.empty()) return tl::unexpected(config::ErrorOf(loaded.problems));
  SetLogLevel(config::DaemonKeysOf(loaded.settings).log_level.value_or(LogLevel::kInfo));
  return Configuration{std::move(loaded.settings), *group};
}

}  // namespace

Status Configure(DaemonSettings& settings, bool on_demand) {
  const auto read = Read(settings.for_everyone);
  if (!read) return tl::unexpected(read.error());
  settings.socket_group = read->socket_group;
  settings.policy = config::PolicyOf(read->settings);
  if (on_demand) settings.idle_exit = kIdleOnDemand;
  const config::DaemonKeys keys = config::DaemonKeysOf(read->settings);
  if (keys.idle_exit) settings.idle_exit = *keys.idle_exit;
  if (keys.mps_idle_time) settings.mps_idle_time = *keys.mps_idle_time;
  if (keys.gate_budget_us) settings.gate.budget = std::chrono::microseconds(*keys.gate_budget_us);
  if (keys.gate_max_closed) settings.gate.max_closed = *keys.gate_max_closed;
  if (keys.gate_min_open_percent)
    settings.gate.min_open = *keys.gate_min_open_percent * std::chrono::milliseconds(10);
  if (keys.history_keep)
    settings.history_keep = std::chrono::duration_cast<std::chrono::seconds>(*keys.history_keep);
  settings.metrics.listen = keys.metrics_listen;
  settings.metrics.labels = keys.metrics_labels.value_or(false);
  // What the keeper takes; and the least goes before the most.
  constexpr std::chrono::nanoseconds kLongest = std::chrono::minutes(10);
  if (keys.mps_hold_min)
    settings.hold.least = std::min<std::chrono::nanoseconds>(*keys.mps_hold_min, kLongest);
  if (keys.mps_hold_max)
    settings.hold.most = std::min<std::chrono::nanoseconds>(*keys.mps_hold_max, kLongest);
  settings.hold.most = std::max(settings.hold.most, settings.hold.least);
  settings.reload = [for_everyone = settings.for_everyone] {
    return Read(for_everyone).map([](const Configuration& now) { return config::PolicyOf(now.settings); });
  };
  return {};
}

}  // namespace gpumux::daemon
