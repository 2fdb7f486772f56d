// SPDX-License-Identifier: Apache-2.0
#include "config/meaning.h"

#include <algorithm>

#include "base/units.h"

namespace gpumux::config {
namespace {

// Settings hold values that were found right, of the type that their key says.
const std::string* TextOf(const Settings& settings, const Path& path) {
  const Setting* setting = Find(settings, path);
  return setting ? std::get_if<std::string>(&setting->value) : nullptr;
}

void Take(const std::string& name, const Value& value, core::Rule& rule) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    rule.quota.guaranteed_bytes = ParseMemorySize(*text)->bytes;
    return;
  }
  const int64_t number = std::get<int64_t>(value);
  if (name == "tenants") rule.quota.tenants = static_cast<unsigned>(number);
  if (name == "gpus") rule.quota.gpus = static_cast<unsigned>(number);
  if (name == "priority") rule.priority = static_cast<int>(number);
}

void TakeWait(const Value& value, std::vector<RunDefault>& out) {
  if (const auto* boolean = std::get_if<bool>(&value)) {
    if (!*boolean) out.push_back({"--no-wait", ""});  // to wait is the default
  } else {
    out.push_back({"--wait", std::get<std::string>(value)});
  }
}

}  // namespace

DaemonKeys DaemonKeysOf(const Settings& settings) {
  DaemonKeys keys;
  if (const std::string* time = TextOf(settings, {"daemon", "idle_exit"})) {
    keys.idle_exit = *ParseDuration(*time);
  }
  if (const std::string* level = TextOf(settings, {"daemon", "log_level"}))
    keys.log_level = *ParseLogLevel(*level);
  const auto time = [&](const Path& path, std::optional<std::chrono::milliseconds>& key) {
    if (const std::string* text = TextOf(settings, path)) key = *ParseDuration(*text);
  };
  time({"gate", "max_closed"}, keys.gate_max_closed);
  const auto number = [&](const Path& path, std::optional<int64_t>& key) {
    if (const auto at = settings.find(path); at != settings.end()) key = std::get<int64_t>(at->second.value);
  };
  number({"gate", "budget_us"}, keys.gate_budget_us);
  number({"gate", "min_open_percent"}, keys.gate_min_open_percent);
  time({"history", "keep"}, keys.history_keep);
  if (const std::string* address = TextOf(settings, {"metrics", "listen"}))
    keys.metrics_listen = *ParseLoopbackAddress(*address);
  if (const Setting* labels = Find(settings, {"metrics", "labels"}))
    keys.metrics_labels = std::get<bool>(labels->value);
  time({"mps", "hold_min"}, keys.mps_hold_min);
  time({"mps", "hold_max"}, keys.mps_hold_max);
  time({"mps", "idle_time"}, keys.mps_idle_time);
  return keys;
}

core::Policy PolicyOf(const Settings& settings) {
  core::Policy policy;
  if (const std::string* fill = TextOf(settings, {"placement", "fill"}))
    policy.fill = *fill == "spread" ? core::Fill::kSpread : core::Fill::kPack;
  if (const std::string* action = TextOf(settings, {"idle", "policy"}))
    policy.idle.action = *action == "reclaim"  ? core::IdleAction::kReclaim
                         : *action == "notify" ? core::IdleAction::kNotify
                                               : core::IdleAction::kOff;
  if (const std::string* after = TextOf(settings, {"idle", "after"}))
    policy.idle.after = *ParseDuration(*after);
  for (const auto& [path, setting] : settings) {
    if (path.front() != "quota") continue;
    if (path[1] == "every-user") {
      if (!policy.every_user) policy.every_user.emplace();
      Take(path[2], setting.value, *policy.every_user);
    } else {
      Take(path[3], setting.value, (path[1] == "user" ? policy.users : policy.groups)[path[2]]);
    }
  }
  return policy;
}

std::vector<RunDefault> RunDefaultsOf(const Settings& settings) {
  std::vector<RunDefault> out;
  for (const auto& [path, setting] : settings) {
    if (path.front() != "run") continue;
    std::string option = "--" + path[1];
    std::replace(option.begin(), option.end(), '_', '-');
    if (setting.key->type == Type::kWait) {
      TakeWait(setting.value, out);
    } else if (const auto* boolean = std::get_if<bool>(&setting.value)) {
      if (*boolean) out.push_back({option, ""});
    } else {
      out.push_back({option, std::get<std::string>(setting.value)});
    }
  }
  return out;
}

}  // namespace gpumux::config
