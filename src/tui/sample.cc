// SPDX-License-Identifier: Apache-2.0
#include "tui/sample.h"

#include <nlohmann/json.hpp>

namespace gpumux::tui {
namespace {

using Json = nlohmann::json;

const Json& At(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

const Json& ListAt(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const Json& value = At(object, key);
  return value.is_array() ? value : kEmpty;
}

std::string TextAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<uint64_t> NumberAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

std::optional<double> RealAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

bool TrueAt(const Json& object, const char* key) { return At(object, key) == true; }

Error NotUnderstood() {
  return {Code::kInternal, "the daemon's answer is not understood", "it may be of another version"};
}

StrangerSample ReadStranger(const Json& json) {
  StrangerSample stranger;
  stranger.pid = static_cast<int64_t>(NumberAt(json, "pid").value_or(0));
  stranger.name = TextAt(json, "name");
  stranger.owner = TextAt(json, "owner");
  stranger.container = TextAt(json, "container");
  stranger.used = NumberAt(json, "mem_used_bytes");
  return stranger;
}

// From a daemon of before there is the number alone.
std::string LabelOf(const Json& json) {
  std::string label = TextAt(json, "label");
  if (!label.empty()) return label;
  const auto index = NumberAt(json, "index");
  return index ? std::to_string(*index) : "?";
}

GpuSample ReadGpu(const Json& json) {
  GpuSample gpu;
  gpu.uuid = TextAt(json, "uuid");
  gpu.name = TextAt(json, "name");
  gpu.mode = TextAt(json, "mode");
  gpu.mode_reason = TextAt(json, "mode_reason");
  gpu.label = LabelOf(json);
  gpu.total = NumberAt(json, "mem_total_bytes");
  gpu.reserve = NumberAt(json, "mem_reserve_bytes");
  gpu.guaranteed = NumberAt(json, "mem_guaranteed_bytes");
  gpu.used = NumberAt(json, "mem_used_bytes");
  gpu.unmanaged = NumberAt(json, "mem_unmanaged_bytes");
  gpu.unexplained = NumberAt(json, "mem_unexplained_bytes");
  gpu.device_used = NumberAt(json, "mem_device_used_bytes");
  gpu.promisable = NumberAt(json, "mem_promisable_bytes");
  gpu.promisable_reason = TextAt(json, "mem_promisable_bytes_reason");
  if (const auto busy = RealAt(json, "busy_ratio"); busy && *busy >= 0 && *busy <= 1) gpu.busy_ratio = busy;
  gpu.remedy = TextAt(json, "remedy");
  for (const Json& stranger : ListAt(json, "strangers")) gpu.strangers.push_back(ReadStranger(stranger));
  // NVML alone knows no more than the pids.
  if (gpu.strangers.empty()) {
    for (const Json& pid : ListAt(json, "unmanaged_pids")) {
      if (!pid.is_number_unsigned()) continue;
      gpu.strangers.push_back({});
      gpu.strangers.back().pid = static_cast<int64_t>(pid.get<uint64_t>());
    }
  }
  gpu.other_daemon_pid = NumberAt(At(json, "owner"), "pid");
  return gpu;
}

MemberSample ReadMember(const Json& json) {
  MemberSample member;
  member.pid = NumberAt(json, "pid");
  member.name = TextAt(json, "name");
  member.guard = TextAt(json, "guard");
  member.waits = TextAt(json, "waits");
  member.alive = At(json, "alive") != false;
  for (const Json& gpu : ListAt(json, "gpus")) {
    const auto committed = NumberAt(gpu, "mem_committed_bytes"),
               overhead = NumberAt(gpu, "mem_overhead_bytes");
    if (committed && overhead) member.charged = member.charged.value_or(0) + *committed + *overhead;
  }
  return member;
}

TenantGpuSample ReadTenantGpu(const Json& json) {
  TenantGpuSample gpu;
  gpu.uuid = TextAt(json, "uuid");
  gpu.label = LabelOf(json);
  gpu.guaranteed = NumberAt(json, "mem_guaranteed_bytes");
  gpu.limit = NumberAt(json, "mem_limit_bytes");
  gpu.used = NumberAt(json, "mem_used_bytes");
  gpu.peak = NumberAt(json, "mem_peak_bytes");
  gpu.at_risk = NumberAt(json, "mem_at_risk_bytes");
  gpu.at_risk_why = TextAt(json, "at_risk_why");
  return gpu;
}

// What a tenant does with the GPU's time, and what is done to it.
void ReadTime(const Json& json, TenantSample& tenant) {
  tenant.share_min = RealAt(json, "share_min_ratio");
  tenant.share_max = RealAt(json, "share_max_ratio");
  tenant.waited_seconds = RealAt(json, "waited_seconds");
  tenant.time_limit_seconds = RealAt(json, "time_limit_seconds");
  tenant.launches = NumberAt(json, "launches");
  if (const Json& turns = At(json, "turns"); turns.is_object()) {
    tenant.turns =
        TurnsSample{TextAt(turns, "state"),   RealAt(turns, "gpu_seconds"), RealAt(turns, "part_ratio"),
                    NumberAt(turns, "turns"), NumberAt(turns, "overran"),   NumberAt(turns, "unused")};
  }
  if (const Json& gate = At(json, "gate"); gate.is_object()) {
    tenant.gate =
        GateSample{TextAt(gate, "role"),           TextAt(gate, "held_by"), RealAt(gate, "busy_seconds"),
                   RealAt(gate, "closed_seconds"), NumberAt(gate, "waits"), NumberAt(gate, "forced_open")};
  }
  if (const Json& waiting = At(json, "waiting"); waiting.is_object()) {
    tenant.waiting =
        WaitingSample{NumberAt(waiting, "position").value_or(0), TextAt(waiting, "reason"),
                      TextAt(waiting, "estimated_start_at"), TextAt(waiting, "estimated_start_at_reason")};
  }
}

void ReadMemory(const Json& json, TenantSample& tenant) {
  tenant.guaranteed = NumberAt(json, "mem_guaranteed_bytes");
  tenant.limit = NumberAt(json, "mem_limit_bytes");
  tenant.limit_reason = TextAt(json, "mem_limit_bytes_reason");
  tenant.used = NumberAt(json, "mem_used_bytes");
  tenant.peak = NumberAt(json, "mem_peak_bytes");
  tenant.at_risk = NumberAt(json, "mem_at_risk_bytes");
  tenant.above_limit = TrueAt(json, "above_limit");
  tenant.above_limit_reason = TextAt(json, "above_limit_reason");
  const Json& enforced = At(json, "enforced");
  tenant.enforced = TextAt(enforced, "memory");
  tenant.enforced_reason = TextAt(enforced, "memory_reason");
  tenant.compute = TextAt(enforced, "compute");
  tenant.compute_reason = TextAt(enforced, "compute_reason");
  const Json& refusals = At(json, "refusals");
  for (const char* key : {"own_limit", "device_full", "own_part"}) {
    if (const auto count = NumberAt(refusals, key)) tenant.refusals = tenant.refusals.value_or(0) + *count;
  }
}

TenantSample ReadTenant(const Json& json) {
  TenantSample tenant;
  tenant.id = TextAt(json, "id");
  tenant.name = TextAt(json, "name");
  tenant.owner = TextAt(json, "owner");
  tenant.state = TextAt(json, "state");
  tenant.mode = TextAt(json, "mode");
  tenant.mode_reason = TextAt(json, "mode_reason");
  tenant.priority = TextAt(json, "priority");
  tenant.isolation = TextAt(json, "isolation");
  tenant.command = TextAt(json, "command");
  tenant.cwd = TextAt(json, "cwd");
  tenant.started_at = TextAt(json, "started_at");
  tenant.strict = TrueAt(json, "strict");
  tenant.reservation_pid = NumberAt(json, "reservation_pid");
  ReadMemory(json, tenant);
  ReadTime(json, tenant);
  for (const Json& gpu : ListAt(json, "gpus")) tenant.gpus.push_back(ReadTenantGpu(gpu));
  for (const Json& member : ListAt(json, "members")) tenant.members.push_back(ReadMember(member));
  if (const Json& labels = At(json, "labels"); labels.is_object()) {
    for (const auto& [key, value] : labels.items())
      tenant.labels.emplace_back(key, TextAt(labels, key.c_str()));
  }
  return tenant;
}

}  // namespace

Result<Sample> ReadSample(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  const Json& data = At(json, "data");
  if (!data.is_object() || !At(data, "gpus").is_array()) return tl::unexpected(NotUnderstood());
  Sample sample;
  sample.simulated = TrueAt(json, "simulated");
  const Json& daemon = At(data, "daemon");
  sample.daemon_pid = NumberAt(daemon, "pid");
  sample.daemon_user = TextAt(daemon, "user");
  sample.daemon_version = TextAt(daemon, "version");
  sample.driver_version = TextAt(data, "driver_version");
  for (const Json& gpu : ListAt(data, "gpus")) sample.gpus.push_back(ReadGpu(gpu));
  for (const Json& tenant : ListAt(data, "tenants")) sample.tenants.push_back(ReadTenant(tenant));
  return sample;
}

Result<EventsSample> ReadEvents(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  const Json& data = At(json, "data");
  const auto next = NumberAt(data, "next_after");
  if (!At(data, "events").is_array() || !next) return tl::unexpected(NotUnderstood());
  EventsSample sample;
  sample.next_after = *next;
  sample.more = TrueAt(data, "more");
  for (const Json& json_event : ListAt(data, "events")) {
    EventSample event;
    event.id = NumberAt(json_event, "id").value_or(0);
    event.at_unix_milliseconds = NumberAt(json_event, "at_unix_milliseconds");
    event.kind = TextAt(json_event, "kind");
    event.severity = TextAt(json_event, "severity");
    event.tenant = TextAt(json_event, "tenant");
    event.tenant_name = TextAt(json_event, "tenant_name");
    event.text = TextAt(json_event, "text");
    event.user = TextAt(json_event, "user");
    sample.events.push_back(std::move(event));
  }
  return sample;
}

}  // namespace gpumux::tui
