// SPDX-License-Identifier: Apache-2.0
#include "workload/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

namespace gpumux::workload {
namespace {

constexpr std::pair<const char*, AllocApi> kApis[] = {
    {"plain", AllocApi::kPlain}, {"pitch", AllocApi::kPitch}, {"async", AllocApi::kAsync},
    {"pool", AllocApi::kPool},   {"vmm", AllocApi::kVmm},     {"managed", AllocApi::kManaged},
    {"array", AllocApi::kArray}, {"graph", AllocApi::kGraph}, {"ipc", AllocApi::kIpc},
    {"local", AllocApi::kLocal}, {"heap", AllocApi::kHeap},   {"module", AllocApi::kModule}};
constexpr std::pair<const char*, Framework> kFrameworks[] = {
    {"tensorflow", Framework::kTensorFlow}, {"jax", Framework::kJax}, {"pytorch", Framework::kPyTorch}};
constexpr std::pair<const char*, Ending> kEndings[] = {{"return", Ending::kReturn}, {"exit", Ending::kExit},
                                                       {"segv", Ending::kSegv},     {"kill", Ending::kKill},
                                                       {"fault", Ending::kFault},   {"hang", Ending::kHang}};

template <typename T, size_t N>
const char* NameIn(const std::pair<const char*, T> (&table)[N], T value) {
  for (const auto& [name, candidate] : table) {
    if (candidate == value) return name;
  }
  return "none";
}

tl::unexpected<Error> Wrong(const char* option, const std::string& value, const std::string& why,
                            const std::string& hint) {
  return Fail(Code::kInvalid, fmt::format("{} '{}': {}", option, value.substr(0, 60), why), hint);
}

template <typename T, size_t N>
Status TakeWord(const char* option, const std::string& text, const std::pair<const char*, T> (&table)[N],
                T& out) {
  std::string words;
  for (const auto& [name, candidate] : table) {
    if (text == name) {
      out = candidate;
      return {};
    }
    words += fmt::format("{}{}", words.empty() ? "" : ", ", name);
  }
  return Wrong(option, text, "unknown", "one of: " + words);
}

// A decimal number within [low, high], nothing around it.
template <typename T>
Status TakeNumber(const char* option, const std::string& text, T low, T high, T& out) {
  T value{};
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string hint = fmt::format("write a number from {} to {}, for example {} {}", low, high, option,
                                       std::min(high, std::max<T>(low, 10)));
  if (parsed.ec == std::errc::result_out_of_range) return Wrong(option, text, "out of range", hint);
  // Comparisons with NaN are false: written so that it fails.
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())
    return Wrong(option, text, "not a number", hint);
  if (!(value >= low && value <= high)) return Wrong(option, text, "out of range", hint);
  out = value;
  return {};
}

}  // namespace

const char* Name(AllocApi api) { return NameIn(kApis, api); }
const char* Name(Framework framework) { return NameIn(kFrameworks, framework); }
const char* Name(Ending ending) { return NameIn(kEndings, ending); }

Result<CommandLine> ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  Options& o = line.options;
  CLI::App app("gpumux-workload: a GPU program that behaves as asked");
  app.footer(
      "Exit status: 0 it ran, 1 something failed, 2 usage, 3 an allocation was refused.\n\n"
      "Examples:\n"
      "  gpumux-workload --kernel-us 500 --seconds 5 --json        closed loop of one 500 us kernel\n"
      "  gpumux-workload --kernel-us 200 --kernels 4 --rate 100    100 requests a second, arriving at "
      "random\n"
      "  gpumux-workload --alloc 10GiB --alloc-api vmm --hold 60   take memory and keep it for a minute\n"
      "  gpumux-workload --like tensorflow --json                  take memory as TensorFlow does");

  // Values are taken as text and judged below, so that every message says
  // which option, which value, and what would be right.
  std::map<std::string, std::string> text;
  const auto value = [&](const std::string& group, const std::string& option, const std::string& help,
                         const std::string& type) {
    app.add_option(option, text[option], help)->group(group)->type_name(type);
  };
  value("Load", "--kernel-us", "time of one kernel (500)", "N");
  value("Load", "--blocks", "blocks of a kernel (33)", "N");
  value("Load", "--threads", "threads of a block (256)", "N");
  value("Load", "--gap-us", "pause of the host between requests, closed loop only (0)", "N");
  value("Load", "--seconds", "how long (1)", "S");
  value("Load", "--streams", "streams, each with one request under way (1)", "N");
  value("Load", "--graph", "launch graphs of N kernels instead of single ones", "N");
  value("Load", "--rate", "requests a second arriving at random (Poisson); latency counts from arrival", "R");
  app.add_flag("--poll", o.poll, "ask whether a request has ended, instead of waiting for it")->group("Load");
  value("Load", "--kernels", "kernels (or graphs) of a request (1)", "K");
  value("Load", "--seed", "of the arrivals (1)", "N");
  value("Load", "--start-at", "begin the load at this time, seconds since 1970", "EPOCH");
  value("Memory", "--alloc", "take this much, for example 10GiB or 40% of the total", "SIZE");
  value("Memory", "--alloc-api",
        "plain|pitch|async|pool|vmm|managed|array|graph|ipc|local|heap|module (plain)", "API");
  value("Memory", "--alloc-count", "so many allocations of SIZE (1)", "N");
  value("Memory", "--like", "take memory as tensorflow|jax|pytorch does; with --alloc, pytorch stops at SIZE",
        "NAME");
  app.add_flag("--touch", o.touch, "write all of what was taken")->group("Memory");
  app.add_flag("--verify", o.verify, "fill it on the GPU and compare checksums; also saxpy")->group("Memory");
  app.add_flag("--report-memory", o.report_memory, "free and total at each step, as the driver and NVML say")
      ->group("Memory");
  value("End", "--hold", "keep everything for S seconds after the load", "S");
  value("End", "--end", "return|exit|segv|kill|fault|hang (return)", "HOW");
  value("General", "--device", "CUDA ordinal (0)", "N");
  value("General", "--name", "name in the report", "X");
  value("General", "--ready", "create this file when memory is taken and the load begins", "FILE");
  app.add_flag("--json", o.json, "one JSON object on stdout")->group("General");
  app.add_option("--ipc-open", text["--ipc-open"])->group("");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.help = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    return Fail(Code::kInvalid, error.what(), "see gpumux-workload --help");
  }

  Status status;
  const auto given = [&](const char* option) { return app.get_option(option)->count() > 0; };
  const auto number = [&](const char* option, auto low, auto high, auto& out) {
    using T = std::remove_reference_t<decltype(out)>;
    if (status && given(option))
      status = TakeNumber<T>(option, text[option], static_cast<T>(low), static_cast<T>(high), out);
  };
  constexpr double kMaxSeconds = 1e7;
  number("--kernel-us", 1, 60'000'000, o.kernel_us);
  number("--blocks", 1, 1'000'000, o.blocks);
  number("--threads", 1, 1024, o.threads);
  number("--gap-us", 0, 60'000'000, o.gap_us);
  number("--seconds", 0.001, kMaxSeconds, o.seconds);
  number("--streams", 1, 128, o.streams);
  number("--graph", 1, 10'000, o.graph);
  number("--kernels", 1, 1'000'000, o.kernels);
  number("--seed", 0, std::numeric_limits<uint64_t>::max(), o.seed);
  number("--alloc-count", 1, 1'000'000, o.alloc_count);
  number("--hold", 0, kMaxSeconds, o.hold_seconds);
  number("--device", 0, 127, o.device);
  double rate = 0, start_at = 0;
  number("--rate", 0.001, 1e6, rate);
  number("--start-at", 0, 1e11, start_at);
  if (!status) return tl::unexpected(status.error());
  if (given("--rate")) o.rate = rate;
  if (given("--start-at")) o.start_at = start_at;
  for (const char* option : {"--kernel-us", "--blocks", "--threads", "--gap-us", "--seconds", "--streams",
                             "--graph", "--rate", "--kernels"}) {
    o.load = o.load || given(option);
  }

  if (given("--alloc")) {
    const auto size = ParseMemorySize(text["--alloc"]);
    if (!size) return Fail(Code::kInvalid, "--alloc: " + size.error().message, size.error().hint);
    o.alloc = *size;
  }
  if (given("--alloc-api")) status = TakeWord("--alloc-api", text["--alloc-api"], kApis, o.alloc_api);
  if (status && given("--like")) status = TakeWord("--like", text["--like"], kFrameworks, o.like);
  if (status && given("--end")) status = TakeWord("--end", text["--end"], kEndings, o.end);
  if (!status) return tl::unexpected(status.error());
  for (const char* option : {"--alloc-api", "--alloc-count"}) {
    if (given(option) && !o.alloc) return Fail(Code::kInvalid, fmt::format("{} needs --alloc SIZE", option));
  }
  if (o.like != Framework::kNone && (given("--alloc-api") || given("--alloc-count"))) {
    return Fail(Code::kInvalid, "--like has its own way to take memory",
                "leave out --alloc-api and --alloc-count");
  }
  if (o.rate && o.gap_us > 0) return Fail(Code::kInvalid, "--gap-us has no meaning with --rate");
  if (given("--name")) o.name = text["--name"];
  if (given("--ready")) o.ready_file = text["--ready"];
  o.ipc_open = text["--ipc-open"];
  return line;
}

}  // namespace gpumux::workload
