// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/history_view.h"
#include "cli/terminal.h"
#include "gpu/nvml_instances.h"
#include "gpu/uuid.h"
#include "history/answer.h"
#include "history/outcome.h"
#include "history/store.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

struct HistoryOptions {
  std::optional<std::string> gpu;  // its history instead of tenants'
  std::string filters;             // of the query, each with '&' before it
  size_t limit = 50;               // the newest; SIZE_MAX: all
  bool json = false, csv = false;
};

Result<int64_t> MillisecondsAgo(const std::string& option, const std::string& text) {
  const auto age = ParseDuration(text);
  if (!age)
    return Fail(Code::kInvalid, fmt::format("{} '{}' is no time", option, Plain(text, 40)),
                "write for example 12h or 30d: so long ago");
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  return std::max<int64_t>((now - *age).count(), 0);
}

Result<HistoryOptions> Judge(const ParsedCommandLine& line) {
  HistoryOptions options;
  options.json = line.Has("--json");
  options.csv = line.Has("--csv");
  if (options.json && options.csv)
    return Fail(Code::kInvalid, "--json and --csv are two forms of one answer", "take one");
  for (const char* key : {"owner", "name", "outcome", "label"}) {
    if (const auto value = line.Value(std::string("--") + key))
      options.filters += fmt::format("&{}={}", key, PathPart(*value));
  }
  options.gpu = line.Value("--gpu");
  if (const auto each = line.Value("--each")) {
    const auto step = ParseDuration(*each);
    if (!step || !options.gpu)
      return Fail(Code::kInvalid,
                  fmt::format("--each '{}': {}", Plain(*each, 40), step ? "it goes with --gpu" : "no time"),
                  "write for example --gpu 0 --each 1h");
    options.filters += fmt::format("&step_ms={}", step->count());
  }
  for (const char* option : {"--owner", "--name", "--outcome", "--label", "--limit"}) {
    if (options.gpu && line.Value(option))
      return Fail(Code::kInvalid, fmt::format("--gpu and {} do not go together", option),
                  "--gpu shows what a GPU was like");
  }
  if (const auto outcome = line.Value("--outcome"); outcome && !history::ParseOutcome(*outcome))
    return Fail(Code::kInvalid, fmt::format("--outcome '{}' is none", Plain(*outcome, 40)),
                "see gpumux history --help");
  if (const auto label = line.Value("--label"); label && label->find('=') == std::string::npos)
    return Fail(Code::kInvalid, fmt::format("--label '{}' is not KEY=VALUE", Plain(*label, 40)));
  for (const char* key : {"since", "until"}) {
    const std::string option = std::string("--") + key;
    if (const auto value = line.Value(option)) {
      const auto at = MillisecondsAgo(option, *value);
      if (!at) return tl::unexpected(at.error());
      options.filters += fmt::format("&{}_ms={}", key, *at);
    }
  }
  if (const auto limit = line.Value("--limit")) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(limit->data(), limit->data() + limit->size(), number);
    if (*limit == "all") {
      options.limit = SIZE_MAX;
    } else if (error != std::errc() || end != limit->data() + limit->size()) {
      return Fail(Code::kInvalid, fmt::format("--limit '{}' is no number", Plain(*limit, 40)),
                  "write a number, or all");
    } else {
      options.limit = number;
    }
  }
  return options;
}

// Where the daemon that runs, or the file, is asked.
class Source {
 public:
  static Result<Source> Find(const Endpoints& endpoints) {
    auto client = ApiClient::Connect(endpoints);
    if (client) {
      // Of another's daemon there is no file to fall back on.
      const bool own = client->socket() == endpoints.own.api_socket;
      return Source(std::move(*client), own ? endpoints.own.history : std::string());
    }
    if (client.error().code == Code::kUnavailable && IsThere(endpoints.own.history)) {
      Source source(std::nullopt, endpoints.own.history);
      source.Open();
      return source;
    }
    return tl::unexpected(client.error());
  }

  // `data` of an answer.
  Result<Json> AskGpu(const std::string& query) {
    if (const auto body = FromDaemon("/v1/history/gpus?" + query)) return *body;
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::system_clock::now().time_since_epoch());
    const auto parsed = history::ParseGpuQuery(query, now.count());
    if (!parsed) return tl::unexpected(parsed.error());
    const auto found = store_->FindGpus(*parsed);
    if (!found) return tl::unexpected(found.error());
    return Json(history::GpuAnswerJson(*found, *parsed));
  }
  Result<Json> Ask(const std::string& query) {
    if (const auto body = FromDaemon("/v1/history?" + query)) return *body;
    const auto parsed = history::ParseQuery(query);
    if (!parsed) return tl::unexpected(parsed.error());
    const auto found = store_->Find(*parsed);
    if (!found) return tl::unexpected(found.error());
    return Json(history::AnswerJson(*found, [](auto record, const auto&) { return record; }));
  }

 private:
  Source(std::optional<ApiClient> client, std::string path)
      : client_(std::move(client)), path_(std::move(path)) {}
  static bool IsThere(const std::string& path) {
    struct stat info{};
    return ::stat(path.c_str(), &info) == 0;
  }
  void Open() { store_ = std::make_unique<history::Store>(path_); }

  // Nullopt: there is no daemon (any more), and the file is to be read.
  std::optional<Result<Json>> FromDaemon(const std::string& path) {
    if (!client_) return std::nullopt;
    const auto body = client_->Get(path);
    if (body) return At(Json::parse(*body, nullptr, false), "data");
    // It died between our knock and its answer.
    if (body.error().code != Code::kUnavailable || !IsThere(path_)) return tl::unexpected(body.error());
    client_.reset();
    Open();
    return std::nullopt;
  }

  std::optional<ApiClient> client_;
  std::string path_;
  std::unique_ptr<history::Store> store_;
};

// Page after page, as many as are wanted.
Result<Json> AskAll(Source& source, const HistoryOptions& options) {
  Json all = Json::array(), totals;
  std::string before;
  for (;;) {
    const size_t page = std::min(options.limit - all.size(), history::kMostInAnAnswer);
    const auto data = source.Ask(fmt::format("limit={}{}{}", page, options.filters, before));
    if (!data) return tl::unexpected(data.error());
    const Json& tenants = At(*data, "tenants");
    if (!tenants.is_array())
      return Fail(Code::kInternal, "the daemon's answer is not understood", "it may be of another version");
    for (const Json& tenant : tenants) all.push_back(tenant);
    if (before.empty()) totals = At(*data, "totals");
    if (At(*data, "more") != true || tenants.empty() || all.size() >= options.limit)
      return Json{
          {"tenants", std::move(all)}, {"more", At(*data, "more") == true}, {"totals", std::move(totals)}};
    before = fmt::format("&before_ms={}&before_id={}", At(tenants.back(), "ended_ms").dump(),
                         PathPart(TextAt(tenants.back(), "id")));
  }
}

// `gpu`: an index, a UUID, or "all".
Result<std::string> UuidQuery(const Endpoints& endpoints, const std::string& gpu) {
  if (gpu == "all") return "";
  const auto nvml = gpu::OpenNvmlWithInstances(endpoints.source);
  if (!nvml) return tl::unexpected(nvml.error());
  for (const auto& device : (*nvml)->Devices()) {
    const std::string uuid = device.uuid.ToString();
    if (gpu == uuid || gpu == fmt::format("{}", device.index.Label())) return "&gpu=" + PathPart(uuid);
  }
  // One that is not there any more has a history all the same.
  if (gpu::ParseUuid(gpu)) return "&gpu=" + PathPart(gpu);
  return Fail(Code::kNotFound, fmt::format("there is no GPU {}", Plain(gpu, 60)),
              "see them with: gpumux status");
}

int ShowGpus(const Endpoints& endpoints, Source& source, const HistoryOptions& options) {
  const auto gpu = UuidQuery(endpoints, *options.gpu);
  if (!gpu) return Report(gpu.error(), options.json);
  const auto data = source.AskGpu((*gpu + options.filters).substr((*gpu + options.filters).empty() ? 0 : 1));
  if (!data) return Report(data.error(), options.json);
  if (options.json) return Print(Envelope("gpu-history", endpoints.source.simulated, *data) + "\n") ? 0 : 1;
  const Json& stretches = At(*data, "stretches");
  if (options.csv) return Print(GpuHistoryCsv(stretches)) ? 0 : 1;
  return Print(RenderGpuHistory(stretches, TerminalOf(STDOUT_FILENO))) ? 0 : 1;
}

}  // namespace

const CommandSpec& HistorySpec() {
  static const CommandSpec spec{
      .usage = "gpumux history [options]",
      .summary = "Shows tenants that have ended: how, when, how long they took and waited.",
      .options = {{"--owner", Takes::kValue, "USER", "of this user"},
                  {"--name", Takes::kValue, "NAME", "of this name"},
                  {"--label", Takes::kValue, "K=V", "with this label"},
                  {"--outcome", Takes::kValue, "WHAT",
                   "that ended so: completed, failed, killed, out-of-memory, neighbour-fault, stopped, "
                   "time-limit, ..."},
                  {"--since", Takes::kValue, "T", "that ended no longer ago than T, for example 24h"},
                  {"--until", Takes::kValue, "T", "that ended at least so long ago"},
                  {"--limit", Takes::kValue, "N", "the newest N (50), or all"},
                  {"--gpu", Takes::kValue, "WHICH",
                   "what a GPU was like instead: an index, a UUID, or all; the last day, or --since"},
                  {"--each", Takes::kValue, "T",
                   "with --gpu: one row for so long (1m or more; as many as fit)"},
                  {"--csv", Takes::kNothing, "", "one line a tenant, for spreadsheets"},
                  {"--json", Takes::kNothing, "",
                   "one JSON object (schema gpumux.history/1, with --gpu gpumux.gpu-history/1)"}},
      .footer =
          "The totals below the table are of all that the filters let through. Every outcome: completed, "
          "failed,\n"
          "killed (by a signal that gpumux did not send), out-of-memory (failed after it was refused "
          "memory),\n"
          "neighbour-fault, own-fault, unknown-fault, mps-server, stopped, time-limit, not-enforced (stopped "
          "since its\n"
          "limit was not in force), not-started, released (a reservation), unknown.\n\n"
          "Examples:\n  gpumux history --since 7d\n  gpumux history --outcome out-of-memory --owner anna\n"
          "  gpumux history --limit all --csv > tenants.csv\n"
          "  gpumux history --gpu 0 --since 7d --each 6h\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int HistoryMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(HistorySpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(HistorySpec())) ? 0 : 1;
  const bool json = line->Has("--json");
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), json);
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), json);
  auto source = Source::Find(*endpoints);
  if (!source) return Report(source.error(), json);
  if (options->gpu) return ShowGpus(*endpoints, *source, *options);
  const auto found = AskAll(*source, *options);
  if (!found) return Report(found.error(), json);
  if (json) return Print(Envelope("history", endpoints->source.simulated, *found) + "\n") ? 0 : 1;
  const Json& tenants = At(*found, "tenants");
  if (options->csv) return Print(HistoryCsv(tenants)) ? 0 : 1;
  return Print(RenderHistory(tenants, At(*found, "totals"), TerminalOf(STDOUT_FILENO))) ? 0 : 1;
}

}  // namespace gpumux::cli
