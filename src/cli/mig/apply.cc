// SPDX-License-Identifier: Apache-2.0
//
// Verbs of `gpumux mig` that change something: the daemon does it, which knows who runs where.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/daemon_start.h"
#include "cli/endpoints.h"
#include "cli/envelope.h"
#include "cli/mig/commands.h"
#include "cli/mig/machine.h"
#include "cli/mig/plan_document.h"
#include "cli/mig/request.h"
#include "cli/terminal.h"
#include "core/mig/choose.h"
#include "core/mig/profile_name.h"

namespace gpumux::cli {
namespace {

using core::mig::Layout;
using Json = nlohmann::json;

constexpr const char* kExample = "write for example gpumux mig apply 3x1g.18gb,1x3g.71gb";
// A change that nobody limited may wait for days; poll() counts to 24 of them.
constexpr std::chrono::milliseconds kPatience = std::chrono::hours(24 * 20);

// What one GPU shall have.
struct Wanted {
  std::string gpu;  // as the daemon finds it
  Layout layout;
};

// The GPU of this machine that --gpu means; without it the only one.
Result<size_t> FindGpu(const ParsedCommandLine& line, const MigGpus& machine) {
  const std::string wanted = line.Value("--gpu").value_or("");
  if (wanted.empty()) {
    if (machine.gpus.size() == 1) return size_t{0};
    return Fail(Code::kInvalid, fmt::format("this machine has {} GPUs with MIG", machine.gpus.size()),
                "name one with --gpu");
  }
  for (size_t at = 0; at < machine.gpus.size(); ++at) {
    if (machine.gpus[at].name == "GPU " + wanted ||
        (wanted.size() > 4 && machine.uuids[at].starts_with(wanted)))
      return at;
  }
  return Fail(Code::kNotFound, fmt::format("there is no GPU \"{}\" with MIG here", Plain(wanted, 64)),
              "see them with: gpumux mig status");
}

// "1g.18gb@0,3g.71gb@4": every place said. Nullopt: none is.
Result<std::optional<Layout>> ParsePlaced(const std::string& text, const gpu::MigModel& model) {
  if (text.find('@') == std::string::npos) return std::optional<Layout>();
  Layout layout;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const size_t sign = item.find('@');
    uint32_t start = 0;
    const char* const last = item.data() + item.size();
    const auto parsed = sign == std::string::npos
                            ? std::from_chars_result{nullptr, std::errc::invalid_argument}
                            : std::from_chars(item.data() + sign + 1, last, start);
    if (parsed.ec != std::errc() || parsed.ptr != last)
      return Fail(Code::kInvalid,
                  fmt::format("'{}' has no place: either all have one or none", Plain(item, 40)),
                  "write for example 1g.18gb@0,3g.71gb@4");
    const auto profile = core::mig::FindProfile(model, item.substr(0, sign));
    if (!profile) return tl::unexpected(profile.error());
    layout.push_back({start, *(*profile)->id});
    at = end + 1;
  }
  return std::optional(std::move(layout));
}

Result<Layout> ParseLayout(const std::string& text, const core::mig::GpuState& gpu) {
  auto placed = ParsePlaced(text, *gpu.model);
  if (!placed) return tl::unexpected(placed.error());
  if (*placed) return **placed;
  const auto wants = ParseMigWants(text);
  if (!wants) return tl::unexpected(wants.error());
  std::vector<uint32_t> profiles;
  for (const core::mig::Want& want : *wants) {
    const auto profile = core::mig::FindProfile(*gpu.model, want.profile);
    if (!profile) return tl::unexpected(profile.error());
    profiles.insert(profiles.end(), want.count, *(*profile)->id);
  }
  return core::mig::ChooseLayout(*gpu.model, gpu.present, std::move(profiles));
}

bool IsFile(const std::string& text) {
  std::error_code none;
  return text.find('/') != std::string::npos || text.ends_with(".json") ||
         std::filesystem::exists(text, none);
}

Result<std::vector<Wanted>> WantedOf(const ParsedCommandLine& line) {
  if (line.words.size() != 2) return Fail(Code::kInvalid, "say which instances, or a plan's file", kExample);
  const std::string& text = line.words[1];
  if (IsFile(text)) {
    const auto file = ReadMigFile(text);
    if (!file) return tl::unexpected(file.error());
    const auto plans = ReadMigPlan(*file);
    if (!plans) return tl::unexpected(plans.error());
    std::vector<Wanted> wanted;
    for (const MigPlanOfGpu& plan : *plans) {
      const auto named = line.Value("--gpu");
      if (plan.uuid.empty() && !named)
        return Fail(Code::kInvalid, "the plan is for no certain GPU", "name one with --gpu");
      if (named && plans->size() > 1)
        return Fail(Code::kInvalid, "the plan has several GPUs, and --gpu names one");
      wanted.push_back({named.value_or(plan.uuid), plan.layout});
    }
    return wanted;
  }
  const auto machine = MigGpusOfThisMachine();
  if (!machine) return tl::unexpected(machine.error());
  const auto at = FindGpu(line, *machine);
  if (!at) return tl::unexpected(at.error());
  const auto layout = ParseLayout(text, machine->gpus[*at]);
  if (!layout) return tl::unexpected(layout.error());
  return std::vector<Wanted>{{machine->uuids[*at], *layout}};
}

// What stays when those at these places go.
Result<std::vector<Wanted>> WithoutThose(const ParsedCommandLine& line) {
  const bool all = line.Has("--all");
  if (all == (line.words.size() > 1))
    return Fail(Code::kInvalid, "say where the instances begin, or --all",
                "write for example gpumux mig destroy 0 4");
  const auto machine = MigGpusOfThisMachine();
  if (!machine) return tl::unexpected(machine.error());
  const auto at = FindGpu(line, *machine);
  if (!at) return tl::unexpected(at.error());
  Layout stays;
  for (const auto& each : machine->gpus[*at].present) stays.push_back(each.instance);
  if (all) stays.clear();
  for (size_t word = 1; word < line.words.size(); ++word) {
    const std::string& text = line.words[word];
    const auto gone =
        std::erase_if(stays, [&](const auto& each) { return std::to_string(each.start) == text; });
    if (gone == 0)
      return Fail(Code::kNotFound, fmt::format("no instance begins at {}", Plain(text, 20)),
                  "see them with: gpumux mig status");
  }
  return std::vector<Wanted>{{machine->uuids[*at], stays}};
}

Result<Json> BodyOf(const ParsedCommandLine& line, const Wanted& wanted) {
  Json instances = Json::array();
  for (const auto& each : wanted.layout)
    instances.push_back({{"profile", each.profile}, {"start", each.start}});
  Json body{{"gpu", wanted.gpu},
            {"instances", std::move(instances)},
            {"dry_run", line.Has("--dry-run")},
            {"keep", line.Has("--keep")}};
  if (const auto drain = line.Value("--drain")) {
    if (*drain != "wait" && *drain != "stop")
      return Fail(Code::kInvalid, fmt::format("--drain '{}' is neither wait nor stop", Plain(*drain, 20)),
                  kExample);
    body["drain"] = *drain;
  }
  if (const auto wait = line.Value("--wait")) {
    const auto time = ParseDuration(*wait);
    if (!time) return Fail(Code::kInvalid, "--wait: " + time.error().message, "write for example --wait 10m");
    if (!line.Has("--drain")) return Fail(Code::kInvalid, "--wait is for --drain", kExample);
    body["wait_seconds"] = std::chrono::duration<double>(*time).count();
  }
  return body;
}

std::string Lines(const Json& data, const std::string& before_each) {
  std::string text;
  for (const Json& each : data.is_array() ? data : Json::array()) {
    if (each.is_string()) text += before_each + Plain(each.get<std::string>(), 300) + "\n";
  }
  return text;
}

std::string Told(const Json& data) {
  const std::string gpu = TextAt(data, "gpu", 16);
  const bool dry = At(data, "dry_run") == true;
  const Json& steps = At(data, "steps");
  if (!steps.is_array() || steps.empty()) return fmt::format("GPU {} has these instances already\n", gpu);
  std::string text = fmt::format("GPU {}{}\n", gpu, dry ? " would" : "");
  text += Lines(steps, "  ");
  if (const Json& users = At(data, "users"); users.is_array() && !users.empty())
    text +=
        (dry ? std::string("in use, and in the way\n") : std::string("ended for it\n")) + Lines(users, "  ");
  if (dry) return text + "nothing was changed\n";
  const Json& took = At(data, "took_seconds");
  const Json& lost = At(data, "lost_gpu_seconds");
  if (took.is_number() && lost.is_number())
    text +=
        fmt::format("done in {:.2f} s; {:.1f} GPU-seconds lost\n", took.get<double>(), lost.get<double>());
  return text;
}

int Change(const ParsedCommandLine& line, const Result<std::vector<Wanted>>& wanted) {
  const bool json = line.Has("--json");
  if (!wanted) return Report(wanted.error(), json);
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), json);
  const auto client = ConnectOrStart(*endpoints);
  if (!client) return Report(client.error(), json);
  for (const Wanted& each : *wanted) {
    const auto body = BodyOf(line, each);
    if (!body) return Report(body.error(), json);
    const auto answer = client->Post("/v1/mig/apply", body->dump(), kPatience);
    if (!answer) return Report(answer.error(), json);
    if (!Print(json ? *answer + "\n" : Told(At(Json::parse(*answer, nullptr, false), "data")))) return 1;
  }
  return 0;
}

int Post(const ParsedCommandLine& line, const char* path, Json body) {
  const bool json = line.Has("--json");
  if (line.words.size() > 1) body["gpu"] = line.words[1];
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), json);
  const auto client = ConnectOrStart(*endpoints);
  if (!client) return Report(client.error(), json);
  const auto answer = client->Post(path, body.dump(), kPatience);
  if (!answer) return Report(answer.error(), json);
  if (json) return Print(*answer + "\n") ? 0 : 1;
  return Print(TextAt(At(Json::parse(*answer, nullptr, false), "data"), "text", 400) + "\n") ? 0 : 1;
}

}  // namespace

int MigApply(const ParsedCommandLine& line) { return Change(line, WantedOf(line)); }
int MigDestroy(const ParsedCommandLine& line) { return Change(line, WithoutThose(line)); }
int MigEnable(const ParsedCommandLine& line) { return Post(line, "/v1/mig/mode", {{"on", true}}); }
int MigDisable(const ParsedCommandLine& line) { return Post(line, "/v1/mig/mode", {{"on", false}}); }
int MigCancel(const ParsedCommandLine& line) { return Post(line, "/v1/mig/cancel", Json::object()); }
int MigForget(const ParsedCommandLine& line) { return Post(line, "/v1/mig/forget", Json::object()); }

}  // namespace gpumux::cli
