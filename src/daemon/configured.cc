// SPDX-License-Identifier: Apache-2.0
#include "daemon/configured.h"

#include "base/log.h"
#include "config/meaning.h"
#include "config/sources.h"

namespace gpumux::daemon {

namespace {

constexpr auto kIdleOnDemand = std::chrono::seconds(30);

Result<config::Settings> Read(bool for_everyone) {
  auto loaded = config::Load(for_everyone ? config::Reader::kMachineDaemon : config::Reader::kUser);
  for (const std::string& file : loaded.files) LogInfo("configuration: {}", file);
  for (const config::Problem& problem : loaded.problems) LogError("configuration: {}", problem.ToString());
  if (!loaded.problems.empty()) return tl::unexpected(config::ErrorOf(loaded.problems));
  SetLogLevel(config::DaemonKeysOf(loaded.settings).log_level.value_or(LogLevel::kInfo));
  return std::move(loaded.settings);
}

}  // namespace

Status Configure(DaemonSettings& settings, bool on_demand) {
  const auto read = Read(settings.for_everyone);
  if (!read) return tl::unexpected(read.error());
  settings.policy = config::PolicyOf(*read);
  if (on_demand) settings.idle_exit = kIdleOnDemand;
  if (const auto idle = config::DaemonKeysOf(*read).idle_exit) settings.idle_exit = *idle;
  settings.reload = [for_everyone = settings.for_everyone] {
    return Read(for_everyone).map(config::PolicyOf);
  };
  return {};
}

}  // namespace gpumux::daemon
