// SPDX-License-Identifier: Apache-2.0
#include "tui/top.h"

#include <fmt/format.h>
#include <langinfo.h>
#include <unistd.h>

#include <charconv>
#include <clocale>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/units.h"
#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/set_request.h"
#include "cli/status_local.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;
using Json = nlohmann::json;

// So long a person waits for a screen, or for the end of the command.
constexpr std::chrono::seconds kPatience(2);
// Loading NVML costs more than all the rest.
constexpr std::chrono::seconds kNvmlAgain(5);
constexpr std::chrono::milliseconds kShortestInterval(100);
constexpr std::chrono::milliseconds kLongestInterval = std::chrono::hours(1);
constexpr int kWidth = 80, kHeight = 24;
// Of events the first time: what is older is what `gpumux events` is for.
constexpr int kEventsSeconds = 600;

// The first daemon that answers, looked for anew whenever there is none.
class ApiDaemon final : public tui::Daemon {
 public:
  explicit ApiDaemon(Endpoints endpoints) : endpoints_(std::move(endpoints)) {}

  Result<std::string> AskStatus() override { return Get("/v1/status"); }
  Result<std::string> AskEvents(uint64_t after) override {
    return Get(after > 0 ? fmt::format("/v1/events?after={}", after)
                         : fmt::format("/v1/events?since_seconds={}", kEventsSeconds));
  }
  Result<std::string> AskNvml() override {
    const auto now = std::chrono::steady_clock::now();
    if (!nvml_ || now >= nvml_at_ + kNvmlAgain) {
      nvml_ = StatusFromNvml(endpoints_.source);
      nvml_at_ = now;
    }
    return *nvml_;
  }
  Status Stop(const std::string& tenant) override { return Post(tenant, "stop", Json::object()); }
  Status SetMemory(const std::string& tenant, const std::string& range) override {
    return Set(tenant, MemoryRequest(range));
  }
  Status SetTime(const std::string& tenant, const std::string& time) override {
    return Set(tenant, TimeRequest(time));
  }

 private:
  Status Find() {
    if (client_) return {};
    auto client = ApiClient::Connect(endpoints_);
    if (!client) return tl::unexpected(client.error());
    client_ = std::move(*client);
    return {};
  }
  template <typename Ask>
  Result<std::string> With(Ask ask) {
    if (const Status found = Find(); !found) return tl::unexpected(found.error());
    auto answer = ask(*client_);
    if (!answer && answer.error().code == Code::kUnavailable) client_.reset();
    return answer;
  }
  Result<std::string> Get(const std::string& path) {
    return With([&](const ApiClient& client) { return client.Get(path, kPatience); });
  }
  Status Post(const std::string& tenant, const char* action, const Json& body) {
    const std::string path = fmt::format("/v1/tenants/{}/{}", PathPart(tenant), action);
    const auto answer =
        With([&](const ApiClient& client) { return client.Post(path, body.dump(), kPatience); });
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  Status Set(const std::string& tenant, const Result<Json>& body) {
    if (!body) return tl::unexpected(body.error());
    return Post(tenant, "set", *body);
  }

  Endpoints endpoints_;
  std::optional<ApiClient> client_;
  std::optional<Result<std::string>> nvml_;
  std::chrono::steady_clock::time_point nvml_at_{};
};

// Of the terminal, else of COLUMNS and LINES, else 80x24.
std::pair<int, int> SizeOfScreen() {
  const Terminal terminal = TerminalOf(STDOUT_FILENO);
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    int value = 0;
    if (text) std::from_chars(text, text + std::string_view(text).size(), value);
    return value > 0 && value <= 1000 ? value : 0;
  };
  const int width = terminal.width > 0 ? terminal.width : number("COLUMNS");
  const int height = terminal.height > 0 ? terminal.height : number("LINES");
  return {width > 0 ? width : kWidth, height > 0 ? height : kHeight};
}

Result<tui::TopOptions> Judge(const ParsedCommandLine& line) {
  tui::TopOptions options;
  options.readonly = line.Has("--readonly");
  options.ascii = line.Has("--ascii") || std::string_view(::nl_langinfo(CODESET)) != "UTF-8";
  options.color = TerminalOf(STDOUT_FILENO).color;
  if (const auto text = line.Value("--interval")) {
    const auto interval = ParseDuration(*text);
    if (!interval)
      return Fail(Code::kInvalid, "--interval: " + interval.error().message, interval.error().hint);
    if (*interval < kShortestInterval || *interval > kLongestInterval)
      return Fail(Code::kInvalid,
                  fmt::format("--interval '{}': not between 100 ms and an hour", Plain(*text, 40)),
                  "write for example --interval 2s");
    options.interval = *interval;
  }
  return options;
}

}  // namespace

const CommandSpec& TopSpec() {
  static const CommandSpec spec{
      .usage = "gpumux top [options]",
      .summary = "Shows GPUs, who held them when, tenants and events, and goes on showing them.",
      .options = {{"--interval", Takes::kValue, "T", "between samples: 1s (default), from 100ms to 1h"},
                  {"--readonly", Takes::kNothing, "", "no key stops or changes a tenant"},
                  {"--ascii", Takes::kNothing, "", "letters and signs of ASCII alone"},
                  {"--once", Takes::kNothing, "",
                   "one screen as text, from two samples; also without a terminal"}},
      .footer =
          "F1 or h shows every key, and what the bars and columns mean.\n\n"
          "Examples:\n  gpumux top --readonly\n  ssh -t node gpumux top --ascii\n  gpumux top --once\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int TopMain(const std::vector<std::string>& arguments) {
  // Which characters the terminal has; numbers stay as they are.
  std::setlocale(LC_CTYPE, "");
  const auto line = ParseArguments(TopSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(TopSpec())) ? 0 : 1;
  const auto options = Judge(*line);
  if (!options) return Report(options.error());
  auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error());
  ApiDaemon daemon(std::move(*endpoints));
  if (line->Has("--once") || ::isatty(STDOUT_FILENO) != 1 || ::isatty(STDIN_FILENO) != 1) {
    const auto [width, height] = SizeOfScreen();
    const auto screen = tui::OneScreen(daemon, *options, width, height);
    if (!screen) return Report(screen.error());
    return Print(*screen) ? 0 : 1;
  }
  const auto ended = tui::RunTop(daemon, *options);
  return ended ? *ended : Report(ended.error());
}

}  // namespace gpumux::cli
