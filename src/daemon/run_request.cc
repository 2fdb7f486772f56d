// SPDX-License-Identifier: Apache-2.0
#include "daemon/run_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "gpumux/abi/pages.h"

namespace gpumux::daemon {

namespace {

using Json = nlohmann::json;

constexpr size_t kMaxName = 128;
constexpr size_t kMaxLabels = 64;
constexpr size_t kMaxLabelBytes = 256;
constexpr size_t kMaxArguments = 16384;
constexpr uint64_t kMaxBytes = 1ull << 60;
constexpr uint64_t kMaxProcesses = 4096;
constexpr double kMaxSeconds = 10.0 * 365 * 86400;
// Deeper than any message of ours; the parser itself recurses.
constexpr int kMaxDepth = 8;

tl::unexpected<Error> Bad(std::string_view member, std::string_view what) {
  return Fail(Code::kInvalid, fmt::format("\"{}\" {}", member, what));
}

Result<Json> Parse(std::string_view text) {
  bool too_deep = false;
  Json json = Json::parse(
      text.begin(), text.end(),
      [&](int depth, Json::parse_event_t, Json&) {
        too_deep |= depth > kMaxDepth;
        return depth <= kMaxDepth;
      },
      /*allow_exceptions=*/false);
  if (json.is_discarded() || too_deep || !json.is_object())
    return Fail(Code::kInvalid, "the message is not a JSON object");
  return json;
}

const Json& Member(const Json& object, const char* name) {
  static const Json kNull;
  const auto it = object.find(name);
  return it == object.end() ? kNull : *it;
}

// Control characters would reach terminals and logs.
bool Printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

Result<std::optional<MemorySize>> Size(const Json& object, const char* name) {
  const Json& value = Member(object, name);
  if (value.is_null()) return std::optional<MemorySize>();
  if (!value.is_object() || value.size() != 1)
    return Bad(name, "must be null, {\"bytes\":N} or {\"ratio\":R}");
  if (const Json& bytes = Member(value, "bytes"); !bytes.is_null()) {
    if (!bytes.is_number_unsigned() || bytes.get<uint64_t>() == 0 || bytes.get<uint64_t>() > kMaxBytes) {
      return Bad(name, "must have a whole number of bytes from 1 to 2^60");
    }
    return std::optional(MemorySize{.bytes = bytes.get<uint64_t>(), .ratio = 0});
  }
  const Json& ratio = Member(value, "ratio");
  // Written so that NaN fails too.
  if (!ratio.is_number() || !(ratio.get<double>() > 0 && ratio.get<double>() <= 1)) {
    return Bad(name, "must have a ratio above 0 and up to 1");
  }
  return std::optional(MemorySize{.bytes = 0, .ratio = ratio.get<double>()});
}

Result<bool> Flag(const Json& object, const char* name, bool otherwise) {
  const Json& value = Member(object, name);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return Bad(name, "must be true or false");
  return value.get<bool>();
}

Result<std::optional<std::chrono::nanoseconds>> Seconds(const Json& object, const char* name) {
  const Json& value = Member(object, name);
  if (value.is_null()) return std::optional<std::chrono::nanoseconds>();
  if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMaxSeconds)) {
    return Bad(name, "must be a number of seconds from 0 to ten years");
  }
  return std::optional(std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(value.get<double>())));
}

Result<std::string> Text(const Json& object, const char* name, size_t most) {
  const Json& value = Member(object, name);
  if (value.is_null()) return std::string();
  if (!value.is_string()) return Bad(name, "must be a string");
  std::string text = value.get<std::string>();
  if (text.size() > most) return Bad(name, fmt::format("is longer than {} bytes", most));
  if (!Printable(text)) return Bad(name, "has control characters");
  return text;
}

Status ReadGpus(const Json& object, core::Request& ask) {
  const Json& gpus = Member(object, "gpus");
  if (gpus.is_null()) return {};
  if (!gpus.is_object() || gpus.size() != 1) return Bad("gpus", "must be {\"count\":N} or {\"list\":[...]}");
  if (const Json& count = Member(gpus, "count"); !count.is_null()) {
    if (!count.is_number_unsigned() || count.get<uint64_t>() == 0 ||
        count.get<uint64_t>() > GPUMUX_MAX_GPUS) {
      return Bad("gpus", fmt::format("must count from 1 to {}", GPUMUX_MAX_GPUS));
    }
    ask.gpu_count = count.get<unsigned>();
    return {};
  }
  const Json& list = Member(gpus, "list");
  if (!list.is_array() || list.empty() || list.size() > GPUMUX_MAX_GPUS) {
    return Bad("gpus", fmt::format("must list 1 to {} GPUs", GPUMUX_MAX_GPUS));
  }
  for (const Json& gpu : list) {
    if (!gpu.is_string() || gpu.get_ref<const std::string&>().size() > 64 ||
        !Printable(gpu.get_ref<const std::string&>())) {
      return Bad("gpus", "must list indexes or UUIDs as strings");
    }
    ask.gpu_list.push_back(gpu.get<std::string>());
  }
  return {};
}

Status ReadMode(const Json& object, core::Request& ask) {
  auto mode = Text(object, "mode", 32);
  if (!mode) return tl::unexpected(mode.error());
  ask.mode = core::FindMode(*mode);
  if (!ask.mode && !mode->empty() && *mode != "auto")
    return Bad("mode", "must be auto, exclusive, timeslice, turns, mps or mig");

  auto isolate = Text(object, "isolate", 32);
  if (!isolate) return tl::unexpected(isolate.error());
  if (*isolate == "none")
    ask.isolation = core::Isolation::kNone;
  else if (*isolate == "full")
    ask.isolation = core::Isolation::kFull;
  else if (!isolate->empty() && *isolate != "fault")
    return Bad("isolate", "must be none, fault or full");
  return {};
}

// A part of a GPU; nullopt: not given.
Result<std::optional<double>> Part(const Json& object, const char* name) {
  const Json& part = Member(object, name);
  if (part.is_null()) return std::nullopt;
  // Written so that NaN fails too.
  if (!part.is_number() || !(part.get<double>() > 0 && part.get<double>() <= 1))
    return Bad(name, "must be a ratio above 0 and up to 1");
  return part.get<double>();
}

// In mode turns a part of the GPU's time, in mode mps the most of its multiprocessors.
Status ReadShare(const Json& object, core::Request& ask) {
  const auto least = Part(object, "share_min"), most = Part(object, "share_ceiling");
  if (!least || !most) return tl::unexpected((least ? most : least).error());
  ask.share_min = *least;
  ask.share_ceiling = *most;
  if (ask.share_min && ask.share_ceiling && *ask.share_min > *ask.share_ceiling)
    return Bad("share_ceiling", "is below share_min");
  if (ask.share_min && ask.mode != core::Mode::kTurns)
    return Fail(Code::kUnsupported, "a guaranteed share needs mode turns", "");
  if (ask.share_ceiling && ask.mode != core::Mode::kTurns && ask.mode != core::Mode::kMps)
    return Fail(Code::kUnsupported, "a share needs mode turns or mps", "");
  return {};
}

// What mode mps alone keeps.
Status ReadMps(const Json& object, core::Request& ask) {
  const Json& processes = Member(object, "processes");
  auto priority = Text(object, "priority", 32);
  if (!priority) return tl::unexpected(priority.error());
  const auto urgency = priority->empty() ? core::Urgency::kNormal : core::FindUrgency(*priority);
  if (!urgency) return Bad("priority", "must be latency, normal or best-effort");
  ask.urgency = *urgency;
  if (!processes.is_null()) {
    if (!processes.is_number_unsigned() || processes.get<uint64_t>() == 0 ||
        processes.get<uint64_t>() > kMaxProcesses)
      return Bad("processes", fmt::format("must be a whole number from 1 to {}", kMaxProcesses));
    ask.processes = processes.get<unsigned>();
  }
  if (ask.mode == core::Mode::kTurns && ask.urgency == core::Urgency::kLatency &&
      (ask.share_min || ask.share_ceiling))
    return Fail(Code::kUnsupported, "a latency-critical program takes no turns", "");
  if (ask.mode != core::Mode::kMps && ask.processes > 1)
    return Fail(Code::kUnsupported, "a number of processes needs mode mps", "");
  return {};
}

Status ReadPlace(const Json& object, core::Request& ask) {
  const auto place = Text(object, "place", 32);
  if (!place) return tl::unexpected(place.error());
  if (*place == "pack")
    ask.fill = core::Fill::kPack;
  else if (*place == "spread")
    ask.fill = core::Fill::kSpread;
  else if (!place->empty())
    return Bad("place", "must be pack or spread");
  return {};
}

Status ReadCommand(const Json& object, RunRequest& request) {
  const Json& command = Member(object, "command");
  if (!command.is_array() || command.empty() || command.size() > kMaxArguments) {
    return Bad("command", "must be a list of at least one string");
  }
  for (const Json& argument : command) {
    if (!argument.is_string()) return Bad("command", "must be a list of strings");
    if (request.command.size() > RunRequest::kMaxCommandBytes) continue;
    if (!request.command.empty()) request.command += ' ';
    request.command += argument.get_ref<const std::string&>();
  }
  if (request.command.size() > RunRequest::kMaxCommandBytes) {
    request.command.resize(RunRequest::kMaxCommandBytes - 3);
    request.command += "...";
  }
  for (char& c : request.command) {
    if (!Printable({&c, 1})) c = '?';
  }
  if (request.ask.name.empty()) {
    // The program's own name, as a person would call it.
    std::string name = command[0].get<std::string>();
    name = name.substr(name.find_last_of('/') + 1).substr(0, kMaxName);
    request.ask.name = Printable(name) && !name.empty() ? name : "program";
  }
  return {};
}

Status ReadLabels(const Json& object, RunRequest& request) {
  const Json& labels = Member(object, "labels");
  if (labels.is_null()) return {};
  if (!labels.is_object() || labels.size() > kMaxLabels)
    return Bad("labels", fmt::format("must be an object of at most {} strings", kMaxLabels));
  for (const auto& [key, value] : labels.items()) {
    if (!value.is_string() || key.empty() || key.size() > kMaxLabelBytes ||
        value.get_ref<const std::string&>().size() > kMaxLabelBytes || !Printable(key) ||
        !Printable(value.get_ref<const std::string&>())) {
      return Bad("labels",
                 fmt::format("must have names and values of 1 to {} printable bytes", kMaxLabelBytes));
    }
    request.labels[key] = value.get<std::string>();
  }
  return {};
}

Result<RunRequest> Read(const Json& json) {
  RunRequest request;
  auto name = Text(json, "name", kMaxName);
  if (!name) return tl::unexpected(name.error());
  request.ask.name = *name;
  auto cwd = Text(json, "cwd", 4096);
  if (!cwd) return tl::unexpected(cwd.error());
  request.cwd = *cwd;
  auto mem = Size(json, "mem");
  if (!mem) return tl::unexpected(mem.error());
  request.ask.mem = *mem;
  auto limit = Size(json, "mem_limit");
  if (!limit) return tl::unexpected(limit.error());
  request.ask.mem_limit = *limit;
  if (*limit && !*mem) return Bad("mem_limit", "needs \"mem\" too");
  for (const auto& [field, flag] : {std::pair{"strict", &request.strict}, std::pair{"wait", &request.wait}}) {
    auto value = Flag(json, field, *flag);
    if (!value) return tl::unexpected(value.error());
    *flag = *value;
  }
  for (const auto& [field, limit_of] :
       {std::pair{"wait_seconds", &request.wait_limit}, std::pair{"time_seconds", &request.ask.time_limit}}) {
    auto value = Seconds(json, field);
    if (!value) return tl::unexpected(value.error());
    *limit_of = *value;
  }
  auto after = Text(json, "after", 64);
  if (!after) return tl::unexpected(after.error());
  request.after = *after;
  auto affinity = Text(json, "cpu_affinity", 32);
  if (!affinity) return tl::unexpected(affinity.error());
  if (!affinity->empty() && *affinity != "auto" && *affinity != "none")
    return Bad("cpu_affinity", "must be auto or none");
  request.near_gpu = *affinity == "auto";
  if (Status status = ReadGpus(json, request.ask); !status) return tl::unexpected(status.error());
  if (Status status = ReadMode(json, request.ask); !status) return tl::unexpected(status.error());
  if (Status status = ReadShare(json, request.ask); !status) return tl::unexpected(status.error());
  if (Status status = ReadMps(json, request.ask); !status) return tl::unexpected(status.error());
  if (Status status = ReadPlace(json, request.ask); !status) return tl::unexpected(status.error());
  if (Status status = ReadCommand(json, request); !status) return tl::unexpected(status.error());
  if (Status status = ReadLabels(json, request); !status) return tl::unexpected(status.error());
  return request;
}

Result<std::optional<int>> SmallNumber(const Json& json, const char* name, int64_t low, int64_t high) {
  const Json& value = Member(json, name);
  if (value.is_null()) return std::optional<int>();
  // The unsigned check first: get<int64_t> would wrap what is above its range.
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(high)) ||
      value.get<int64_t>() < low || value.get<int64_t>() > high) {
    return Bad(name, fmt::format("must be a whole number from {} to {}", low, high));
  }
  return std::optional(static_cast<int>(value.get<int64_t>()));
}

}  // namespace

Result<RunRequest> ParseRunRequest(std::string_view text) {
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  auto request = Read(*json);
  if (request) request->text = text;
  return request;
}

Result<StopRequest> ParseStopRequest(std::string_view text) {
  StopRequest request;
  if (text.empty()) return request;
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  const auto signal = SmallNumber(*json, "signal", 1, 64);
  if (!signal) return tl::unexpected(signal.error());
  request.signal = signal->value_or(request.signal);
  const auto grace = Seconds(*json, "grace_seconds");
  if (!grace) return tl::unexpected(grace.error());
  request.grace = grace->value_or(request.grace);
  return request;
}

Result<core::Mode> ParseModeRequest(std::string_view text) {
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  for (const auto& [name, value] : json->items()) {
    if (name != "mode")
      return Bad(Printable(name) ? std::string_view(name).substr(0, 60) : "?", "means nothing");
  }
  const auto word = Text(*json, "mode", 32);
  if (!word) return tl::unexpected(word.error());
  const auto mode = core::FindMode(*word);
  if (!mode) return Bad("mode", "must be a mode");
  return *mode;
}

Result<core::Change> ParseChange(std::string_view text) {
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  for (const auto& [name, value] : json->items()) {
    if (name != "mem" && name != "mem_limit" && name != "time_seconds" && name != "as_it_frees")
      return Bad(Printable(name) ? std::string_view(name).substr(0, 60) : "?", "cannot be set");
  }
  core::Change change;
  const auto mem = Size(*json, "mem"), limit = Size(*json, "mem_limit");
  if (!mem) return tl::unexpected(mem.error());
  if (!limit) return tl::unexpected(limit.error());
  change.mem = *mem;
  change.mem_limit = *limit;
  if (*limit && !*mem) return Bad("mem_limit", "needs \"mem\" too");
  const auto time = Seconds(*json, "time_seconds");
  if (!time) return tl::unexpected(time.error());
  change.time_limit = *time;
  const auto frees = Flag(*json, "as_it_frees", false);
  if (!frees) return tl::unexpected(frees.error());
  change.as_it_frees = *frees;
  if (!change.mem && !change.time_limit)
    return Fail(Code::kInvalid, "there is nothing to set", "name \"mem\" or \"time_seconds\"");
  return change;
}

std::string ChangedText(const RunRequest& request) {
  const auto size = [](const std::optional<MemorySize>& value) -> Json {
    if (!value) return nullptr;
    return value->bytes ? Json{{"bytes", value->bytes}} : Json{{"ratio", value->ratio}};
  };
  auto json = Parse(request.text);
  if (!json) return request.text;
  (*json)["mem"] = size(request.ask.mem);
  (*json)["mem_limit"] = size(request.ask.mem_limit);
  const auto& time = request.ask.time_limit;
  (*json)["time_seconds"] = time ? Json(std::chrono::duration<double>(*time).count()) : Json(nullptr);
  return json->dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<int> ParseReservePid(std::string_view text) { return ParseRunStarted(text); }

Result<ReserveRequest> ParseReserveRequest(std::string_view text, const std::vector<std::string>& command) {
  const auto pid = ParseReservePid(text);
  if (!pid) return tl::unexpected(pid.error());
  const Json json = *Parse(text);
  // What the next daemon reads back: a request like any other.
  Json run{{"command", command.empty() ? Json{"program"} : Json(command)}, {"wait", false}, {"mode", "auto"}};
  for (const char* member : {"mem", "gpus", "name"}) run[member] = Member(json, member);
  auto request = ParseRunRequest(run.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!request) return tl::unexpected(request.error());
  if (!request->ask.mem) return Bad("mem", "is missing");
  return ReserveRequest{*pid, std::move(*request)};
}

Result<RunResume> ParseRunResume(std::string_view text) {
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  RunResume resume;
  auto tenant = Text(*json, "tenant", GPUMUX_TENANT_ID_BYTES);
  if (!tenant) return tl::unexpected(tenant.error());
  resume.tenant = *tenant;
  const auto pid = SmallNumber(*json, "pid", 1, 1 << 30);
  if (!pid) return tl::unexpected(pid.error());
  resume.pid = *pid;
  return resume;
}

Result<int> ParseRunStarted(std::string_view text) {
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  const auto pid = SmallNumber(*json, "pid", 1, 1 << 30);
  if (!pid) return tl::unexpected(pid.error());
  if (!*pid) return Bad("pid", "is missing");
  return **pid;
}

Result<RunEnded> ParseRunEnded(std::string_view text) {
  const auto json = Parse(text);
  if (!json) return tl::unexpected(json.error());
  const auto exit_code = SmallNumber(*json, "exit_code", 0, 255);
  if (!exit_code) return tl::unexpected(exit_code.error());
  const auto signal = SmallNumber(*json, "signal", 1, 64);
  if (!signal) return tl::unexpected(signal.error());
  return RunEnded{*exit_code, *signal};
}

}  // namespace gpumux::daemon
