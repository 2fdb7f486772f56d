// SPDX-License-Identifier: Apache-2.0
#include "cli/run_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "cli/envelope.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

// The command in a request is for people and for the tenant's name; a long one
// (file lists) must not make the message too large.
constexpr size_t kMaxCommandBytes = 8192;

std::string Dump(const Json& json) {
  // Arguments and paths are any bytes; JSON is UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json Size(const std::optional<MemorySize>& size) {
  if (!size) return nullptr;
  return size->bytes > 0 ? Json{{"bytes", size->bytes}} : Json{{"ratio", size->ratio}};
}

Json Seconds(const std::optional<std::chrono::milliseconds>& time) {
  return time ? Json(static_cast<double>(time->count()) / 1000) : Json(nullptr);
}

tl::unexpected<Error> NotOfTheProtocol(const char* what) {
  return Fail(Code::kInternal, fmt::format("the daemon's answer is not understood ({})", what),
              "restart gpumuxd: it may be of another version");
}

std::string Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// "2026-11-30T12:00:00Z"; nullopt: not such a time.
std::optional<std::chrono::system_clock::time_point> ParseTime(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (!end || *end != '\0') return std::nullopt;
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

std::optional<uint64_t> Bytes(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}

std::map<std::string, std::string> Strings(const Json& object, const char* key) {
  std::map<std::string, std::string> out;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_object()) return out;
  for (const auto& [name, value] : it->items()) {
    if (value.is_string()) out[name] = value.get<std::string>();
  }
  return out;
}

// An earlier daemon does not say it.
NearGpu ReadNear(const Json& near) {
  NearGpu out;
  if (!near.is_object()) return out;
  out.cpus = ParseCpuList(Text(near, "near_cpus")).value_or(CpuList{});
  out.memory_nodes = ParseCpuList(Text(near, "near_memory_nodes")).value_or(CpuList{});
  out.unknown = Plain(Text(near, "near_cpus_reason"), 200);
  return out;
}

}  // namespace

std::string RunRequestJson(const RunOptions& options, const std::string& cwd, const std::string& after) {
  Json command = Json::array();
  size_t bytes = 0;
  for (const std::string& argument : options.command) {
    if (bytes > kMaxCommandBytes) {
      command.push_back("...");
      break;
    }
    command.push_back(argument.substr(0, kMaxCommandBytes));
    bytes += argument.size() + 1;
  }
  Json labels = Json::object();
  for (const auto& [key, value] : options.labels) labels[key] = value;
  Json gpus =
      options.gpu_list.empty() ? Json{{"count", options.gpu_count}} : Json{{"list", options.gpu_list}};
  const bool turns = options.mode == "turns";
  const auto& ceiling = turns ? options.share_ceiling : options.share;
  Json request = {{"name", options.name.empty() ? Json(nullptr) : Json(options.name)},
                  {"command", command},
                  {"cwd", cwd},
                  {"mem", Size(options.mem)},
                  {"mem_limit", Size(options.mem_limit)},
                  {"gpus", gpus},
                  {"mode", options.mode},
                  {"isolate", options.isolate},
                  {"share_min", turns && options.share ? Json(*options.share) : Json(nullptr)},
                  {"share_ceiling", ceiling ? Json(*ceiling) : Json(nullptr)},
                  {"processes", options.processes ? Json(*options.processes) : Json(nullptr)},
                  {"priority", options.priority},
                  {"place", options.place.empty() ? Json(nullptr) : Json(options.place)},
                  {"cpu_affinity", options.cpu_affinity},
                  {"strict", options.strict},
                  {"wait", options.wait},
                  {"wait_seconds", Seconds(options.wait_limit)},
                  {"time_seconds", Seconds(options.time)},
                  {"labels", labels}};
  if (!after.empty()) request["after"] = after;
  return Dump(request);
}

std::string RunResumeJson(const std::string& tenant_id, std::optional<int> pid) {
  Json json = {{"tenant", tenant_id}};
  if (pid) json["pid"] = *pid;
  return Dump(json);
}

std::string RunStartedJson(int pid) { return Dump({{"pid", pid}}); }

std::string RunEndedJson(std::optional<int> exit_code, std::optional<int> signal) {
  return Dump({{"exit_code", exit_code ? Json(*exit_code) : Json(nullptr)},
               {"signal", signal ? Json(*signal) : Json(nullptr)}});
}

Result<Queued> ParseQueued(const std::string& json) {
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) return NotOfTheProtocol("queued");
  Queued queued;
  queued.position = static_cast<unsigned>(Bytes(object, "position").value_or(0));
  queued.reason = Plain(Text(object, "reason"), 400);
  queued.starts_by = ParseTime(Text(object, "estimated_start_at"));
  const auto holders = object.find("holders");
  if (holders != object.end() && holders->is_array()) {
    for (const Json& holder : *holders) {
      if (!holder.is_object()) continue;
      const auto bytes = Bytes(holder, "mem_guaranteed_bytes");
      queued.holders.push_back(
          Plain(fmt::format("{} ({}) {}", Text(holder, "name"), Text(holder, "id"),
                            bytes && *bytes > 0 ? FormatBytes(*bytes) : std::string("no guarantee")),
                120));
    }
  }
  return queued;
}

std::string QueuedLine(const Queued& queued, std::chrono::system_clock::time_point now) {
  std::string line = "waiting: " + (queued.reason.empty() ? std::string("no room yet") : queued.reason);
  if (queued.position > 1) line += fmt::format("; {} ahead", queued.position - 1);
  if (queued.starts_by)
    line += fmt::format(
        "; starts in {} at the latest",
        FormatDuration(std::max<std::chrono::nanoseconds>(
            std::chrono::ceil<std::chrono::seconds>(*queued.starts_by - now), std::chrono::seconds(1))));
  constexpr size_t kShown = 4;
  for (size_t i = 0; i < std::min(queued.holders.size(), kShown); ++i) {
    line += (i == 0 ? "; held by " : ", ") + queued.holders[i];
  }
  if (queued.holders.size() > kShown) line += fmt::format(" and {} more", queued.holders.size() - kShown);
  return line;
}

Result<Granted> ParseGranted(const std::string& json) {
  const Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) return NotOfTheProtocol("granted");
  Granted granted;
  granted.tenant_id = Text(object, "tenant_id");
  if (granted.tenant_id.empty()) return NotOfTheProtocol("no tenant_id");
  granted.name = Text(object, "name");
  granted.mode = Text(object, "mode");
  granted.simulated = object.value("simulated", Json()) == true;
  const auto waited = object.find("waited_seconds");
  if (waited != object.end() && waited->is_number()) granted.waited_seconds = waited->get<double>();
  granted.env = Strings(object, "env");
  granted.env_prepend = Strings(object, "env_prepend");
  const auto gpus = object.find("gpus");
  if (gpus == object.end() || !gpus->is_array() || gpus->empty()) return NotOfTheProtocol("no gpus");
  granted.near = ReadNear(object.value("near", Json()));
  for (const Json& gpu : *gpus) {
    if (!gpu.is_object()) return NotOfTheProtocol("gpus");
    granted.gpus.push_back({.uuid = Text(gpu, "uuid"),
                            .name = Text(gpu, "name"),
                            .label = GpuLabel(gpu),
                            .guaranteed_bytes = Bytes(gpu, "mem_guaranteed_bytes").value_or(0),
                            .limit_bytes = Bytes(gpu, "mem_limit_bytes")});
  }
  return granted;
}

std::string GrantedLine(const Granted& granted) {
  std::string gpus;
  for (const Granted::Gpu& gpu : granted.gpus) {
    gpus += fmt::format("{}GPU {} ({}, {}): ", gpus.empty() ? "" : "; ", gpu.label, gpu.name,
                        gpu.uuid.substr(0, 12));
    if (gpu.guaranteed_bytes == 0) {
      gpus += "no guarantee";
    } else {
      gpus += FormatBytes(gpu.guaranteed_bytes);
      if (gpu.limit_bytes && *gpu.limit_bytes > gpu.guaranteed_bytes)
        gpus += ", up to " + FormatBytes(*gpu.limit_bytes);
    }
  }
  return Plain(
      fmt::format("granted {} ({}) on {}, mode {}", granted.name, granted.tenant_id, gpus, granted.mode),
      400);
}

}  // namespace gpumux::cli
