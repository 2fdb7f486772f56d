// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <thread>

#include "base/units.h"
#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/envelope.h"
#include "cli/event_view.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

// The daemon answers within this, event or not; then the command looks whether
// anybody still reads what it prints.
constexpr std::chrono::seconds kWait(20);
constexpr std::chrono::seconds kPatience = kWait + std::chrono::seconds(10);
constexpr std::chrono::milliseconds kLookAgain(500);

struct EventsOptions {
  uint64_t after = 0;
  std::string filters;  // of the query, the first events' age not among them
  std::string since;
  bool follow = false;
  bool json = false;
};

std::optional<uint64_t> Number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() ? std::optional(value)
                                                                                   : std::nullopt;
}

Result<EventsOptions> Judge(const ParsedCommandLine& line) {
  EventsOptions options;
  options.follow = line.Has("--follow");
  options.json = line.Has("--json");
  if (const auto text = line.Value("--since")) {
    const auto number = Number(*text);
    const auto age =
        number ? Result<std::chrono::milliseconds>(std::chrono::milliseconds(0)) : ParseDuration(*text);
    if (!age)
      return Fail(Code::kInvalid, fmt::format("--since '{}': neither a number nor a time", Plain(*text, 40)),
                  "write for example --since 10m, or --since 117 for the events from number 117 on");
    if (number)
      options.after = *number > 0 ? *number - 1 : 0;
    else
      options.since = fmt::format("&since_seconds={}", std::chrono::ceil<std::chrono::seconds>(*age).count());
  } else if (options.follow) {
    options.since = "&since_seconds=0";
  }
  if (const auto tenant = line.Value("--tenant")) options.filters += "&tenant=" + PathPart(*tenant);
  if (const auto gpu = line.Value("--gpu")) options.filters += "&gpu=" + PathPart(*gpu);
  return options;
}

// Asks until nothing is left; `show` is called for each answer. The number after
// which to go on.
template <typename Show>
Result<uint64_t> AskAll(const ApiClient& client, const EventsOptions& options, uint64_t after,
                        const std::string& more, Show show) {
  for (;;) {
    const auto body =
        client.Get(fmt::format("/v1/events?after={}{}{}", after, options.filters, more), kPatience);
    if (!body) return tl::unexpected(body.error());
    const Json json = Json::parse(*body, nullptr, false);
    const Json &data = At(json, "data"), &next = At(data, "next_after");
    if (!At(data, "events").is_array() || !next.is_number_unsigned())
      return Fail(Code::kInternal, "the daemon's answer is not understood", "it may be of another version");
    if (!show(json)) return Fail(Code::kInternal, "");
    after = next.get<uint64_t>();
    if (At(data, "more") != true) return after;
  }
}

bool PrintLines(const Json& answer, const EventsOptions& options) {
  const Json& data = At(answer, "data");
  std::string out;
  for (const Json& event : At(data, "events")) {
    out += options.json ? event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                        : EventLine(event, TerminalOf(STDOUT_FILENO));
  }
  return out.empty() || Print(out);
}

bool NobodyReads() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int Follow(ApiClient client, const Endpoints& endpoints, const EventsOptions& options) {
  uint64_t after = options.after;
  std::string more = options.since;
  for (;;) {
    const auto next =
        AskAll(client, options, after, more, [&](const Json& answer) { return PrintLines(answer, options); });
    if (next) {
      after = *next;
      more = fmt::format("&wait_seconds={}", kWait.count());
      if (NobodyReads()) return 1;
      continue;
    }
    if (next.error().message.empty()) return 1;  // stdout is closed
    if (next.error().code != Code::kUnavailable) return Report(next.error(), options.json);
    Say("the daemon is gone; waiting for the next one");
    for (;;) {
      std::this_thread::sleep_for(kLookAgain);
      if (NobodyReads()) return 1;
      if (auto again = ApiClient::Connect(endpoints)) {
        client = std::move(*again);
        break;
      }
    }
    Say("a daemon answers again");
  }
}

int ShowAll(const ApiClient& client, const EventsOptions& options) {
  Json all;
  const auto shown = AskAll(client, options, options.after, options.since, [&](const Json& answer) {
    if (!options.json) return PrintLines(answer, options);
    if (all.is_null()) {
      all = answer;
    } else {
      Json& data = all["data"];
      for (const Json& event : At(At(answer, "data"), "events")) data["events"].push_back(event);
      for (const char* key : {"more", "next_after", "last_id"}) data[key] = At(At(answer, "data"), key);
    }
    return true;
  });
  if (!shown) return shown.error().message.empty() ? 1 : Report(shown.error(), options.json);
  if (!options.json) return 0;
  return Print(Envelope("events", At(all, "simulated") == true, At(all, "data")) + "\n") ? 0 : 1;
}

}  // namespace

const CommandSpec& EventsSpec() {
  static const CommandSpec spec{
      .usage = "gpumux events [options]",
      .summary = "Shows what happened: who was granted, refused or stopped what, and what the daemon found.",
      .options = {{"--follow", Takes::kNothing, "", "go on with what happens from now on, until Ctrl-C"},
                  {"--since", Takes::kValue, "ID|T", "from that number on, or of the last so long: 10m"},
                  {"--tenant", Takes::kValue, "TENANT", "of the tenant with this id or name"},
                  {"--gpu", Takes::kValue, "WHICH", "of a GPU, by index or UUID"},
                  {"--json", Takes::kNothing, "",
                   "one JSON object (schema gpumux.events/1); with --follow one event a line"}},
      .footer =
          "The daemon keeps the last 4096 events; all are in audit.log in its runtime directory.\n\n"
          "Examples:\n  gpumux events --since 1h\n  gpumux events --follow --json | jq .text\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int EventsMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(EventsSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(EventsSpec())) ? 0 : 1;
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), line->Has("--json"));
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), options->json);
  auto client = ApiClient::Connect(*endpoints);
  if (!client) return Report(client.error(), options->json);
  return options->follow ? Follow(std::move(*client), *endpoints, *options) : ShowAll(*client, *options);
}

}  // namespace gpumux::cli
