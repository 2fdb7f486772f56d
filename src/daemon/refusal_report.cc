// SPDX-License-Identifier: Apache-2.0
#include "daemon/refusal_report.h"

#include <fmt/chrono.h>

#include <nlohmann/json.hpp>

namespace gpumux::daemon {

namespace {

using Json = nlohmann::ordered_json;

Json HoldersJson(const Refusal& refusal) {
  Json holders = Json::array();
  for (const Refusal::Holder& holder : refusal.holders) {
    holders.push_back({{"id", holder.id},
                       {"name", holder.name},
                       {"owner", holder.owner},
                       {"mem_held_bytes", holder.held_bytes},
                       {"mem_guaranteed_bytes", holder.guaranteed_bytes}});
  }
  return holders;
}

Json OutsidersJson(const Refusal& refusal) {
  const auto text = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  Json outsiders = Json::array();
  for (const Refusal::Outsider& outsider : refusal.outsiders) {
    Json json{{"pid", outsider.pid},
              {"name", text(outsider.name)},
              {"owner", text(outsider.owner)},
              {"mem_used_bytes", outsider.bytes ? Json(*outsider.bytes) : Json(nullptr)}};
    if (outsider.name.empty()) json["name_reason"] = "it was gone when it was looked at";
    if (outsider.owner.empty()) json["owner_reason"] = "it was gone when it was looked at";
    if (!outsider.bytes) json["mem_used_bytes_reason"] = "NVML does not say";
    outsiders.push_back(std::move(json));
  }
  return outsiders;
}

}  // namespace

Json RefusalJson(const Refusal& refusal) {
  Json json{{"cause", Name(refusal.cause)},
            {"refused_at", fmt::format("{:%Y-%m-%dT%H:%M:%S}Z",
                                       fmt::gmtime(std::chrono::system_clock::to_time_t(refusal.wall)))},
            {"gpu", refusal.gpu.ToString()},
            {"gpu_index", refusal.gpu_index}};
  json["mem_asked_bytes"] = refusal.bytes ? Json(refusal.bytes) : Json(nullptr);
  if (!refusal.bytes) json["mem_asked_bytes_reason"] = "the guard could not tell beforehand";
  json["mem_guaranteed_bytes"] = refusal.guaranteed_bytes;
  json["mem_limit_bytes"] = refusal.limit_bytes ? Json(*refusal.limit_bytes) : Json(nullptr);
  if (!refusal.limit_bytes)
    json["mem_limit_bytes_reason"] = "no guarantee: whatever is not promised to others";
  json["mem_used_bytes"] = refusal.used_bytes;
  json["gpu_mem_total_bytes"] = refusal.total_bytes;
  json["gpu_mem_promisable_bytes"] = refusal.promisable_bytes;
  json["gpu_mem_unexplained_bytes"] = refusal.unexplained_bytes;
  json["holders"] = HoldersJson(refusal);
  json["more_holders"] = refusal.more_holders;
  json["unmanaged"] = OutsidersJson(refusal);
  json["more_unmanaged"] = refusal.more_outsiders;
  return json;
}

}  // namespace gpumux::daemon
