// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <pwd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/daemon_start.h"
#include "cli/envelope.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "gpu/mps_processes.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;
using Style = Table::Style;

// A server is given 20 s to start, and 10 to end.
constexpr std::chrono::seconds kPatience{35};
constexpr timespec kNap{0, 50'000'000};

struct MpsOptions {
  std::string action = "status";
  Json body = Json::object();  // of the request
  bool json = false;
};

std::string OwnerName(uid_t uid) {
  const passwd* entry = ::getpwuid(uid);
  return entry ? entry->pw_name : fmt::format("uid {}", uid);
}

Result<MpsOptions> Judge(const ParsedCommandLine& line) {
  MpsOptions options;
  options.json = line.Has("--json");
  if (line.words.size() > 1)
    return Fail(Code::kInvalid, "one word is expected: status, start, stop or adopt");
  if (!line.words.empty()) options.action = line.words[0];
  const auto& choices = MpsSpec().choices;
  if (std::find(choices.begin(), choices.end(), options.action) == choices.end())
    return Fail(Code::kInvalid,
                fmt::format("'{}' is none of status, start, stop and adopt", Plain(options.action, 40)),
                "see gpumux help mps");
  const auto only = [&](const char* option, bool fits) {
    return line.Has(option) && !fits
               ? Status(Fail(Code::kInvalid, fmt::format("{} means nothing with {}", option, options.action)))
               : Status();
  };
  const bool start = options.action == "start", stop = options.action == "stop",
             adopt = options.action == "adopt";
  for (const Status& status :
       {only("--gpu", start || stop), only("--exclusive", start), only("--pid", adopt)}) {
    if (!status) return tl::unexpected(status.error());
  }
  if (line.Has("--exclusive")) options.body["exclusive"] = true;
  if (const auto text = line.Value("--gpu")) options.body["gpus"] = {{"list", GpuListOf(*text)}};
  if (const auto text = line.Value("--pid")) {
    unsigned pid = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), pid);
    if (error != std::errc() || end != text->data() + text->size() || pid == 0)
      return Fail(Code::kInvalid, fmt::format("--pid '{}': not a process's number", Plain(*text, 40)),
                  "write for example --pid 4711");
    options.body["pid"] = pid;
  }
  return options;
}

// Without a daemon: whoever else runs MPS here.
std::string WithoutDaemon(bool simulated) {
  Json foreign = Json::array();
  for (const gpu::MpsDaemon& daemon : gpu::FindMpsDaemons()) {
    foreign.push_back({{"pid", daemon.pid},
                       {"owner", daemon.owner ? Json(OwnerName(*daemon.owner)) : Json(nullptr)},
                       {"pipe_dir", daemon.settings ? Json(daemon.settings->pipe_dir) : Json(nullptr)},
                       {"every_user", daemon.every_user}});
  }
  return Envelope("mps", simulated, {{"domains", Json::array()}, {"foreign", std::move(foreign)}});
}

std::string Number(const Json& value) { return value.is_number_integer() ? value.dump() : "-"; }

std::string GpusOf(const Json& domain) {
  std::string text;
  bool exclusive = false;
  for (const Json& gpu : At(domain, "gpus")) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", Number(At(gpu, "index")));
    exclusive = exclusive || At(gpu, "exclusive_compute_mode") == true;
  }
  return exclusive ? text + " exclusive" : text;
}

std::string StaysOf(const Json& domain) {
  if (At(domain, "adopted") == true) return "adopted";
  return At(domain, "kept") == true ? "until mps stop" : "while needed";
}

std::string TenantsOf(const Json& domain) {
  std::string text;
  for (const Json& tenant : At(domain, "tenants"))
    text += fmt::format("{}{}", text.empty() ? "" : ", ", TextAt(tenant, "name", 40));
  return text.empty() ? "-" : text;
}

std::string RenderDomains(const Json& domains, const Terminal& terminal) {
  if (!domains.is_array() || domains.empty())
    return "gpumux runs no MPS now: a tenant of mode mps starts it, or gpumux mps start\n";
  Table table;
  table.AddColumn("GPU");
  table.AddColumn("STATE");
  table.AddColumn("STAYS", Table::Align::kLeft, 3);
  table.AddColumn("CONTROL", Table::Align::kRight, 2);
  table.AddColumn("SERVER", Table::Align::kRight, 2);
  table.AddColumn("CLIENTS", Table::Align::kRight);
  table.AddColumn("FAULTS", Table::Align::kRight, 4);
  table.AddColumn("TENANTS");
  std::string reasons;
  for (const Json& domain : domains) {
    const std::string state = TextAt(domain, "state");
    const std::string reason = TextAt(domain, "reason");
    if (!reason.empty()) reasons += fmt::format("GPU {}: {}\n", GpusOf(domain), reason);
    table.AddRow({{GpusOf(domain)},
                  {state, state == "active" ? Style::kGood : Style::kWarning},
                  {StaysOf(domain)},
                  {Number(At(domain, "control_pid"))},
                  {Number(At(domain, "server_pid"))},
                  {fmt::format("{}/{}", Number(At(domain, "client_places_taken")),
                               Number(At(domain, "client_places")))},
                  {Number(At(domain, "faults"))},
                  {TenantsOf(domain)}});
  }
  return table.Render(terminal) + reasons;
}

std::string RenderForeign(const Json& foreign) {
  std::string text;
  if (!foreign.is_array()) return text;
  for (const Json& daemon : foreign) {
    const std::string owner = TextAt(daemon, "owner"), pipe_dir = TextAt(daemon, "pipe_dir");
    text += fmt::format(
        "not gpumux's: control daemon {} of {}{}: its clients are no tenants; "
        "gpumux mps adopt --pid {} makes it serve tenants\n",
        Number(At(daemon, "pid")), owner.empty() ? "somebody" : owner,
        pipe_dir.empty() ? "" : " in " + pipe_dir, Number(At(daemon, "pid")));
  }
  return text;
}

int Show(const std::string& body, const MpsOptions& options) {
  if (options.json) return Print(body) ? 0 : 1;
  const Json json = Json::parse(body, nullptr, false);
  const Json& data = At(json, "data");
  return Print(RenderDomains(At(data, "domains"), TerminalOf(STDOUT_FILENO)) +
               RenderForeign(At(data, "foreign")))
             ? 0
             : 1;
}

bool AnyEnding(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  const Json& domains = At(At(json, "data"), "domains");
  if (!domains.is_array()) return false;
  return std::any_of(domains.begin(), domains.end(), [](const Json& domain) {
    return TextAt(domain, "state") == "ending" || TextAt(domain, "state") == "gone";
  });
}

// Until what ends has ended, so that what comes next does not meet it.
Result<std::string> AfterEnds(const ApiClient& client, std::string body) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (AnyEnding(body) && std::chrono::steady_clock::now() < limit) {
    nanosleep(&kNap, nullptr);
    const auto next = client.Get("/v1/mps");
    // It has left: it had nothing else to do.
    if (!next) break;
    body = *next;
  }
  return body;
}

}  // namespace

const CommandSpec& MpsSpec() {
  static const CommandSpec spec{
      .usage = "gpumux mps [options] [status|start|stop|adopt]",
      .summary = "Shows NVIDIA MPS as gpumux runs it, and starts, stops or adopts it.",
      .options = {{"--gpu", Takes::kValue, "WHICH",
                   "start: GPUs that share one server, indices (0,2) or UUIDs; default: the only GPU. stop: "
                   "default: all"},
                  {"--exclusive", Takes::kNothing, "",
                   "start: exclusive compute mode, until it is stopped; needs root"},
                  {"--pid", Takes::kValue, "N", "adopt: which control daemon, if several run"},
                  {"--json", Takes::kNothing, "", "one JSON object (schema gpumux.mps/1)"}},
      .footer =
          "Nobody needs it to use mode mps: `gpumux run --mode mps` starts MPS, and it ends when nobody "
          "needs it.\n\n"
          "start   MPS stays, with tenants or without, until stop.\n"
          "stop    ends it, at once or with its last tenant; the compute mode is as before at once.\n"
          "adopt   a control daemon that you started yourself serves tenants from now on; stop lets it go "
          "again.\n\n"
          "Examples:\n"
          "  gpumux mps\n"
          "  sudo gpumux mps start --gpu 0 --exclusive\n"
          "  gpumux mps stop\n",
      .words = CommandSpec::Words::kSome,
      .choices = {"status", "start", "stop", "adopt"}};
  return spec;
}

int MpsMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(MpsSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(MpsSpec())) ? 0 : 1;
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), line->Has("--json"));
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), options->json);
  if (options->action == "status") {
    const auto client = ApiClient::Connect(*endpoints);
    if (!client && !options->json) Say(client.error().message);
    const auto body = client ? client->Get("/v1/mps") : WithoutDaemon(endpoints->source.simulated);
    return body ? Show(*body, *options) : Report(body.error(), options->json);
  }
  const auto client = options->action == "stop" ? ApiClient::Connect(*endpoints) : ConnectOrStart(*endpoints);
  if (!client) return Report(client.error(), options->json);
  auto body = client->Post("/v1/mps/" + options->action,
                           options->body.dump(-1, ' ', false, Json::error_handler_t::replace), kPatience);
  if (body && options->action == "stop") body = AfterEnds(*client, std::move(*body));
  return body ? Show(*body, *options) : Report(body.error(), options->json);
}

}  // namespace gpumux::cli
