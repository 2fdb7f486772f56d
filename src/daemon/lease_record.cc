// SPDX-License-Identifier: Apache-2.0
#include "daemon/lease_record.h"

#include <nlohmann/json.hpp>

namespace gpumux::daemon {

namespace {

using Json = nlohmann::json;

// Of the record, not of the session: a daemon of a later release may read this.
constexpr int kVersion = 1;

Json Write(const ProcessName& process) { return {{"pid", process.pid}, {"start_time", process.start_time}}; }

ProcessName ReadProcess(const Json& json) {
  return {json.at("pid").get<pid_t>(), json.at("start_time").get<uint64_t>()};
}

std::chrono::system_clock::time_point WallTime(int64_t ns) {
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::nanoseconds(ns)));
}

int64_t Nanoseconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::optional<int> OptionalInt(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_null() ? std::nullopt : std::optional(value.get<int>());
}

Result<LeaseRecord> Read(const Json& json) {
  LeaseRecord record;
  if (json.at("version").get<int>() != kVersion) return Fail(Code::kInvalid, "of another version");
  record.id = json.at("id").get<std::string>();
  record.uid = json.at("uid").get<uid_t>();
  record.run = ReadProcess(json.at("run"));
  if (json.contains("child")) record.child = ReadProcess(json.at("child"));
  const auto mode = core::FindMode(json.at("mode").get<std::string>());
  if (!mode) return Fail(Code::kInvalid, "an unknown mode");
  record.mode = *mode;
  record.mode_reason = json.at("mode_reason").get<std::string>();
  for (const Json& gpu : json.at("gpus")) {
    core::Share share;
    const auto uuid = gpu::ParseUuid(gpu.at("uuid").get<std::string>());
    if (!uuid) return Fail(Code::kInvalid, "a GPU without a UUID");
    share.gpu = *uuid;
    share.guaranteed_bytes = gpu.at("guaranteed_bytes").get<uint64_t>();
    if (!gpu.at("limit_bytes").is_null()) share.limit_bytes = gpu.at("limit_bytes").get<uint64_t>();
    record.shares.push_back(share);
    record.peak_bytes.push_back(gpu.at("peak_bytes").get<uint64_t>());
  }
  record.reservation = json.value("reservation", false);
  const bool has_process = record.reservation ? record.child && record.child->pid > 1 : record.run.pid > 0;
  if (record.id.empty() || record.shares.empty() || record.shares.size() > GPUMUX_MAX_GPUS || !has_process)
    return Fail(Code::kInvalid, "no lease");
  record.request = json.at("request").get<std::string>();
  record.admitted = Time(json.at("admitted_monotonic_ns").get<int64_t>());
  record.admitted_wall = WallTime(json.at("admitted_wall_ns").get<int64_t>());
  record.waited_seconds = json.at("waited_seconds").get<double>();
  record.guard_seen = json.at("guard_seen").get<bool>();
  // Not in the records of the first release.
  record.frees_as_it_goes = json.value("frees_as_it_goes", false);
  record.apart = json.value("apart", "");
  record.stop_reason = json.at("stop_reason").get<std::string>();
  record.stop_signal = json.at("stop_signal").get<int>();
  if (record.stop_signal < 0 || record.stop_signal > 64) return Fail(Code::kInvalid, "an unknown signal");
  // Not in the records of the first release.
  if (json.contains("killed_at_monotonic_ns"))
    record.killed_at = Time(json.at("killed_at_monotonic_ns").get<int64_t>());
  if (record.killed_at && (*record.killed_at < Time(0) || *record.killed_at > Time::max() / 2))
    return Fail(Code::kInvalid, "an impossible time");
  if (const auto so_far = json.find("carried"); so_far != json.end()) {
    auto carried = ReadCarried(*so_far);
    if (!carried) return Fail(Code::kInvalid, "impossible figures");
    record.carried = std::move(*carried);
  }
  if (const auto ended = json.find("ended"); ended != json.end()) {
    record.ended = Ended{.why = {},
                         .exit_code = OptionalInt(*ended, "exit_code"),
                         .signal = OptionalInt(*ended, "signal"),
                         .at = Time(ended->at("monotonic_ns").get<int64_t>()),
                         .wall = WallTime(ended->at("wall_ns").get<int64_t>())};
    if (record.ended->at < Time(0) || record.ended->at > Time::max() / 2)
      return Fail(Code::kInvalid, "an impossible time");
  }
  return record;
}

}  // namespace

std::string FormatLeaseRecord(const LeaseRecord& record) {
  Json gpus = Json::array();
  for (size_t slot = 0; slot < record.shares.size(); ++slot) {
    const core::Share& share = record.shares[slot];
    gpus.push_back({{"uuid", share.gpu.ToString()},
                    {"guaranteed_bytes", share.guaranteed_bytes},
                    {"limit_bytes", share.limit_bytes ? Json(*share.limit_bytes) : Json(nullptr)},
                    {"peak_bytes", slot < record.peak_bytes.size() ? record.peak_bytes[slot] : 0}});
  }
  Json json = {{"version", kVersion},
               {"id", record.id},
               {"uid", record.uid},
               {"run", Write(record.run)},
               {"mode", std::string(core::Name(record.mode))},
               {"mode_reason", record.mode_reason},
               {"apart", record.apart},
               {"gpus", std::move(gpus)},
               {"request", record.request},
               {"admitted_monotonic_ns", record.admitted.count()},
               {"admitted_wall_ns", Nanoseconds(record.admitted_wall)},
               {"waited_seconds", record.waited_seconds},
               {"guard_seen", record.guard_seen},
               {"frees_as_it_goes", record.frees_as_it_goes},
               {"reservation", record.reservation},
               {"stop_reason", record.stop_reason},
               {"stop_signal", record.stop_signal},
               {"carried", CarriedJson(record.carried)}};
  if (record.child) json["child"] = Write(*record.child);
  if (record.ended) {
    const Ended& ended = *record.ended;
    json["ended"] = {{"exit_code", ended.exit_code ? Json(*ended.exit_code) : Json(nullptr)},
                     {"signal", ended.signal ? Json(*ended.signal) : Json(nullptr)},
                     {"monotonic_ns", ended.at.count()},
                     {"wall_ns", Nanoseconds(ended.wall)}};
  }
  if (record.killed_at) json["killed_at_monotonic_ns"] = record.killed_at->count();
  // A command line may hold any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<LeaseRecord> ParseLeaseRecord(std::string_view text) {
  try {
    return Read(Json::parse(text));
  } catch (const Json::exception& e) {
    return Fail(Code::kInvalid, e.what());
  }
}

}  // namespace gpumux::daemon
