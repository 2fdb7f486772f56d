// SPDX-License-Identifier: Apache-2.0
#include "daemon/mig_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace gpumux::daemon {

namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr size_t kMostParts = 64, kMostGpus = 64;

Json PartsJson(const std::vector<MigPart>& parts) {
  Json json = Json::array();
  for (const MigPart& part : parts)
    json.push_back(
        {{"start", part.instance.start}, {"profile", part.instance.profile}, {"compute", part.compute}});
  return json;
}

std::vector<MigPart> Parts(const Json& json) {
  if (!json.is_array() || json.size() > kMostParts)
    throw Json::other_error::create(501, "too many parts", &json);
  std::vector<MigPart> parts;
  for (const Json& each : json) {
    MigPart part{{each.at("start").get<uint32_t>(), each.at("profile").get<uint32_t>()}, {}};
    const Json compute = each.value("compute", Json::array());
    if (!compute.is_array() || compute.size() > kMostParts)
      throw Json::other_error::create(501, "too many compute instances", &json);
    for (const Json& profile : compute) part.compute.push_back(profile.get<uint32_t>());
    parts.push_back(std::move(part));
  }
  return parts;
}

gpu::Uuid UuidAt(const Json& json) {
  const auto uuid = gpu::ParseUuid(json.get<std::string>());
  if (!uuid || uuid->instance) throw Json::other_error::create(501, "no GPU", &json);
  return *uuid;
}

template <typename T>
Result<T> Read(std::string_view text, T (*read)(const Json&)) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version") != kVersion) return Fail(Code::kInvalid, "a record of another version");
    return read(json);
  } catch (const Json::exception& e) {
    return Fail(Code::kInvalid, e.what());
  }
}

}  // namespace

std::string FormatMigChange(const MigChangeRecord& record) {
  std::vector<MigPart> wanted;
  for (const core::mig::Placed& instance : record.wanted) wanted.push_back({instance, {}});
  return Json{{"version", kVersion},
              {"gpu", record.gpu.ToString()},
              {"before", PartsJson(record.before)},
              {"wanted", PartsJson(wanted)},
              {"by", record.by}}
      .dump();
}

Result<MigChangeRecord> ParseMigChange(std::string_view text) {
  return Read<MigChangeRecord>(text, [](const Json& json) {
    return MigChangeRecord{UuidAt(json.at("gpu")), Parts(json.at("before")),
                           LayoutOf(Parts(json.at("wanted"))), json.at("by").get<uid_t>()};
  });
}

std::string FormatMigKept(const MigKept& kept) {
  Json gpus = Json::object();
  for (const auto& [gpu, parts] : kept) gpus[gpu.ToString()] = PartsJson(parts);
  return Json{{"version", kVersion}, {"gpus", std::move(gpus)}}.dump();
}

Result<MigKept> ParseMigKept(std::string_view text) {
  return Read<MigKept>(text, [](const Json& json) {
    const Json& gpus = json.at("gpus");
    if (!gpus.is_object() || gpus.size() > kMostGpus)
      throw Json::other_error::create(501, "too many GPUs", &json);
    MigKept kept;
    for (const auto& [uuid, parts] : gpus.items()) kept[UuidAt(uuid)] = Parts(parts);
    return kept;
  });
}

}  // namespace gpumux::daemon
