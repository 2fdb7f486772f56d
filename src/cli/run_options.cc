// SPDX-License-Identifier: Apache-2.0
#include "cli/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "gpu/index.h"
#include "gpu/uuid.h"
#include "gpumux/abi/pages.h"

namespace gpumux::cli {
namespace {

using Takes = OptionSpec::Takes;

constexpr size_t kMaxName = 64;
constexpr size_t kMaxLabels = 32;
constexpr size_t kMaxLabelKey = 63;
constexpr size_t kMaxLabelValue = 256;

tl::unexpected<Error> Wrong(std::string_view option, std::string_view value, std::string_view why,
                            std::string hint) {
  std::string shown;
  for (const char c : value.substr(0, 60))
    shown += (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? '?' : c;
  return Fail(Code::kInvalid, fmt::format("{} '{}': {}", option, shown, why), std::move(hint));
}

// An error of base/units, with the option in front.
tl::unexpected<Error> Under(std::string_view option, const Error& error) {
  return Fail(error.code, fmt::format("{}: {}", option, error.message), error.hint);
}

bool IsWordCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

Status TakeGpu(const std::string& text, RunOptions& options) {
  const std::string hint = "write for example --gpu 0, --gpu 0,2, --gpu auto:2 or a GPU's UUID";
  if (text.starts_with("auto")) {
    if (text == "auto") return {};
    unsigned count = 0;
    const char* end = text.data() + text.size();
    const auto parsed = text.size() > 5 && text[4] == ':'
                            ? std::from_chars(text.data() + 5, end, count)
                            : std::from_chars_result{nullptr, std::errc::invalid_argument};
    if (parsed.ec != std::errc() || parsed.ptr != end || count < 1 || count > GPUMUX_MAX_GPUS) {
      return Wrong("--gpu", text, fmt::format("auto:N needs a number from 1 to {}", GPUMUX_MAX_GPUS), hint);
    }
    options.gpu_count = count;
    return {};
  }
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const auto index = gpu::ParseIndex(item);
    const auto uuid = gpu::ParseUuid(item);
    if (!index && !uuid) return Wrong("--gpu", text, "neither an index nor a UUID", hint);
    const std::string name = index ? index->Label() : uuid->ToString();
    if (std::find(options.gpu_list.begin(), options.gpu_list.end(), name) != options.gpu_list.end())
      return Wrong("--gpu", text, "names a GPU twice", hint);
    options.gpu_list.push_back(name);
    begin = end + 1;
  }
  if (options.gpu_list.size() > GPUMUX_MAX_GPUS) {
    return Wrong("--gpu", text, fmt::format("a tenant has at most {} GPUs", GPUMUX_MAX_GPUS), hint);
  }
  return {};
}

Status TakeName(const std::string& text, RunOptions& options) {
  if (text.empty() || text.size() > kMaxName || !std::all_of(text.begin(), text.end(), IsWordCharacter) ||
      text[0] == '-') {
    return Wrong("--name", text, fmt::format("a name has 1 to {} letters, digits, '.', '_' or '-'", kMaxName),
                 "write for example --name train-a");
  }
  options.name = text;
  return {};
}

Status TakeLabel(const std::string& text, RunOptions& options) {
  const std::string hint = "write for example --label team=vision";
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals);
  const bool key_ok =
      !key.empty() && key.size() <= kMaxLabelKey &&
      std::all_of(key.begin(), key.end(), [](char c) { return IsWordCharacter(c) || c == '/'; });
  if (equals == std::string::npos || !key_ok) return Wrong("--label", text, "is not key=value", hint);
  const std::string value = text.substr(equals + 1);
  const bool control =
      std::any_of(value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (value.size() > kMaxLabelValue || control)
    return Wrong("--label", text, "the value is too long or has control characters", hint);
  for (const auto& [other, unused] : options.labels) {
    if (other == key) return Wrong("--label", text, "the key is given twice", hint);
  }
  if (options.labels.size() >= kMaxLabels)
    return Wrong("--label", text, fmt::format("more than {} labels", kMaxLabels), hint);
  options.labels.emplace_back(key, value);
  return {};
}

Status TakeWord(const char* option, const std::string& text, const std::vector<std::string>& words,
                std::string& out) {
  if (std::find(words.begin(), words.end(), text) == words.end()) {
    return Wrong(option, text, "unknown", fmt::format("one of: {}", fmt::join(words, ", ")));
  }
  out = text;
  return {};
}

Result<double> Percent(const std::string& option, const std::string& text) {
  const auto size = ParseMemorySize(text);  // the same grammar of percentages
  if (size && size->ratio > 0) return size->ratio;
  return Wrong(option, text, "is not a percentage", fmt::format("write for example {} 40%", option));
}

Status TakeShare(const std::string& text, RunOptions& options) {
  const size_t colon = text.find(':');
  const auto low = Percent("--share", text.substr(0, colon));
  if (!low) return tl::unexpected(low.error());
  options.share = *low;
  if (colon == std::string::npos) return {};
  const auto high = Percent("--share", text.substr(colon + 1));
  if (!high) return tl::unexpected(high.error());
  if (*high < *low)
    return Wrong("--share", text, "the ceiling is below the minimum", "write for example --share 40%:60%");
  options.share_ceiling = *high;
  return {};
}

Status TakeProcesses(const std::string& text, RunOptions& options) {
  unsigned count = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || count < 1 || count > 4096) {
    return Wrong("--processes", text, "is not a number from 1 to 4096", "write for example --processes 4");
  }
  options.processes = count;
  return {};
}

// "neighbour-fault" or "neighbour-fault=N".
Status TakeRestart(const std::string& text, RunOptions& options) {
  constexpr std::string_view kWord = "neighbour-fault";
  constexpr unsigned kUsually = 3, kMost = 1000;
  const char* const example = "write for example --restart neighbour-fault=5";
  options.restarts = kUsually;
  if (text == kWord) return {};
  const std::string_view number = std::string_view(text).substr(std::min(text.size(), kWord.size() + 1));
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), options.restarts);
  if (!text.starts_with(std::string(kWord) + "=") || parsed.ec != std::errc() ||
      parsed.ptr != number.data() + number.size() || options.restarts < 1 || options.restarts > kMost)
    return Wrong("--restart", text, "is not neighbour-fault, or with a number from 1 to 1000", example);
  return {};
}

// What its mode cannot keep is never dropped silently. Values were judged
// before: a wrong one is a usage error everywhere.
Status CheckMode(const ParsedCommandLine& line, RunOptions& options) {
  const bool mps = options.mode == "mps";
  if (options.share && !mps && options.mode != "turns") {
    return Fail(
        Code::kUnsupported,
        fmt::format(
            "--share {} cannot be kept: in timeslice the driver gives every tenant an equal part of the time",
            *line.Value("--share")),
        "leave out --share, or use --mode turns (parts of the time) or --mode mps (a ceiling)");
  }
  if (options.share && options.mode == "turns" && options.priority == "latency") {
    return Fail(
        Code::kUnsupported,
        fmt::format("--share {} cannot be kept: a latency-critical program works when it wants to, and "
                    "takes no turns",
                    *line.Value("--share")),
        "leave out --share or --priority");
  }
  if (options.share_ceiling && mps) {
    return Fail(Code::kUnsupported,
                fmt::format("--share {} cannot be kept: in mps a share is a ceiling, and no minimum",
                            *line.Value("--share")),
                fmt::format("write --share {}, or use --mode turns",
                            line.Value("--share")->substr(line.Value("--share")->find(':') + 1)));
  }
  if (options.restarts > 0 && !mps) {
    return Fail(Code::kUnsupported, "--restart neighbour-fault is for --mode mps alone",
                "leave it out: in no other mode does a neighbour's fault reach the program");
  }
  if (options.allow_reconfigure && options.mode != "mig") {
    return Fail(Code::kUnsupported, "--allow-reconfigure is for --mode mig alone",
                "leave it out: no other mode needs an instance");
  }
  if (options.processes && !mps) {
    return Fail(Code::kUnsupported, "--processes is for --mode mps alone",
                "leave it out: in timeslice a tenant's memory is one sum over all its processes");
  }
  if (mps && line.Has("--isolate") && options.isolate != "none") {
    return Fail(Code::kUnsupported,
                "mps cannot isolate: a neighbour's GPU fault ends the work of every client of its server",
                "leave out --isolate if these programs may take each other down, or use --mode timeslice");
  }
  if (mps) options.isolate = "none";
  return {};
}

// What excludes each other. A --no- takes back what is configured.
constexpr std::pair<const char*, const char*> kOpposites[] = {
    {"--wait", "--no-wait"},     {"--quiet", "--summary"},      {"--mem", "--no-mem"},
    {"--strict", "--no-strict"}, {"--summary", "--no-summary"}, {"--quiet", "--no-quiet"}};

bool HasOpposite(const ParsedCommandLine& line, const std::string& option) {
  return std::ranges::any_of(kOpposites, [&](const auto& pair) {
    return (option == pair.first && line.Has(pair.second)) || (option == pair.second && line.Has(pair.first));
  });
}

// What the command line says in another way goes before the configuration, too.
void AddDefaults(const std::vector<config::RunDefault>& defaults, ParsedCommandLine& line) {
  const ParsedCommandLine given = line;
  for (const auto& [option, value] : defaults) {
    if (!given.Has(option) && !HasOpposite(given, option)) line.values[option].push_back(value);
  }
}

Status CheckTogether(const ParsedCommandLine& line, const RunOptions& options) {
  for (const auto& [one, other] : kOpposites) {
    if (line.Has(one) && line.Has(other))
      return Fail(Code::kInvalid, fmt::format("{} and {} exclude each other", one, other));
  }
  if (!options.command.empty()) {
    // `--wait 10m -- prog`: the value is optional and therefore needs the '='.
    if (line.Has("--wait") && line.Value("--wait")->empty() && ParseDuration(options.command[0])) {
      return Wrong("--wait", options.command[0], "is taken as the command",
                   fmt::format("write --wait={}", options.command[0]));
    }
    if (options.command[0].empty())
      return Fail(Code::kInvalid, "the command is empty", "gpumux run --mem 10GiB -- python3 train.py");
    return {};
  }
  return Fail(Code::kInvalid, "there is no command to run",
              "write for example gpumux run --mem 10GiB -- python3 train.py");
}

}  // namespace

Status TakeMem(const std::string& text, RunOptions& options) {
  const auto range = ParseMemoryRange(text);
  if (!range) return Under("--mem", range.error());
  options.mem = range->guaranteed;
  options.mem_limit = range->limit;
  return {};
}

const CommandSpec& RunSpec() {
  static const CommandSpec spec{
      .usage = "gpumux run [options] [--] COMMAND [ARGUMENT...]",
      .summary = "Starts a program with a promise of GPU memory, and waits for it.",
      .options =
          {{"--mem", Takes::kValue, "A[:B]",
            "GPU memory: guarantee A, limit B (default A); 10GiB, 40%; without it: no guarantee"},
           {"--no-mem", Takes::kNothing, "", "no guarantee, though one is configured"},
           {"--gpu", Takes::kValue, "WHICH", "auto, auto:N, indices (0,2) or UUIDs; default auto", {"auto"}},
           {"--place",
            Takes::kValue,
            "HOW",
            "among several GPUs: pack (the fullest that holds it) or spread (the emptiest)",
            {"pack", "spread"}},
           {"--name", Takes::kValue, "NAME", "how the tenant is called in status"},
           {"--label", Takes::kValue, "K=V", "a label; may be repeated"},
           {"--wait", Takes::kOptionalValue, "T",
            "wait for room (the default); with =T at most so long, then exit 5"},
           {"--no-wait", Takes::kNothing, "", "exit 4 when there is no room now"},
           {"--time", Takes::kValue, "T",
            "an upper bound of the run: then it is stopped; may let it start earlier"},
           {"--mode",
            Takes::kValue,
            "MODE",
            "auto, exclusive, timeslice, turns, mps, mig (an instance of a partitioned GPU for it alone)",
            {"auto", "exclusive", "timeslice", "turns", "mps"}},
           {"--isolate",
            Takes::kValue,
            "WHAT",
            "none (implied by mps) or fault (default): a neighbour's GPU fault must not reach this program",
            {"none", "fault"}},
           {"--cpu-affinity",
            Takes::kValue,
            "WHAT",
            "auto: on the processors and the memory near its GPUs; none (default)",
            {"auto", "none"}},
           {"--strict", Takes::kNothing, "", "no GPU for the program unless the promise is enforced"},
           {"--no-strict", Takes::kNothing, "", "not so, though it is configured"},
           {"--share", Takes::kValue, "P[:Q]",
            "in mode turns: at least P of the GPU's time and at most Q; in mps: at most P of its SMs"},
           {"--priority",
            Takes::kValue,
            "P",
            "whose work goes first: kernels of best-effort tenants wait while a latency tenant works",
            {"latency", "normal", "best-effort"}},
           {"--processes", Takes::kValue, "N",
            "in mode mps: processes that use the GPU at once; each may take its part of --mem"},
           {"--restart",
            Takes::kValue,
            "WHEN[=N]",
            "neighbour-fault: in mode mps, start the program again (3 times) when another's fault ended it",
            {"neighbour-fault"}},
           {"--allow-reconfigure", Takes::kNothing, "",
            "in mode mig: make an instance where none that holds it is free; none in use is touched"},
           {"--own-group", Takes::kNothing, "",
            "a process group of its own, which ends with run: for those who signal all of run's group"},
           {"--json", Takes::kNothing, "", "closing record as one JSON object on stderr"},
           {"--summary", Takes::kNothing, "", "closing line on stderr even if it is no terminal"},
           {"--no-summary", Takes::kNothing, "", "only at a terminal, though it is configured"},
           {"--quiet", Takes::kNothing, "", "no messages but errors"},
           {"--no-quiet", Takes::kNothing, "", "messages, though quiet is configured"}},
      .footer =
          "Everything from the first word that is no option belongs to the program.\n\n"
          "Exit status: the program's own (128+N when signal N ended it); before it starts: 2 usage, 3 no "
          "daemon,\n"
          "4 refused, 5 timed out waiting, 6 no such GPU, 7 not supported here, 125 internal failure,\n"
          "126 not executable, 127 not found.\n\n"
          "Examples:\n"
          "  gpumux run --mem 40GiB -- python3 serve.py\n"
          "  gpumux run --mem 20GiB:60GiB --name train --wait=30m -- python3 train.py\n"
          "  gpumux run --mem 50% --gpu auto:2 --no-wait -- ./simulate\n"
          "  gpumux run --mode exclusive -- ./benchmark\n"
          "  gpumux run --mode turns --mem 20GiB --share 75% -- python3 train.py\n"
          "  gpumux run --mode mps --mem 10GiB --share 40% -- python3 infer.py\n",
      .words = CommandSpec::Words::kProgram};
  return spec;
}

Result<RunOptions> ParseRunOptions(const std::vector<std::string>& arguments,
                                   const std::vector<config::RunDefault>& defaults) {
  auto line = ParseArguments(RunSpec(), arguments);
  if (!line) return tl::unexpected(line.error());
  AddDefaults(defaults, *line);
  RunOptions options;
  options.help = line->help;
  if (options.help) return options;
  options.command = line->words;
  options.strict = line->Has("--strict");
  options.json = line->Has("--json");
  options.summary = line->Has("--summary");
  options.quiet = line->Has("--quiet");
  options.own_group = line->Has("--own-group");
  options.allow_reconfigure = line->Has("--allow-reconfigure");
  options.wait = !line->Has("--no-wait");

  Status status;
  const auto take = [&](const char* option, auto&& taker) {
    const auto value = line->Value(option);
    if (status && value) status = taker(*value);
  };
  take("--mem", [&](const std::string& v) { return TakeMem(v, options); });
  take("--gpu", [&](const std::string& v) { return TakeGpu(v, options); });
  take("--name", [&](const std::string& v) { return TakeName(v, options); });
  take("--mode", [&](const std::string& v) {
    return TakeWord("--mode", v, {"auto", "exclusive", "timeslice", "turns", "mps", "mig"}, options.mode);
  });
  take("--isolate", [&](const std::string& v) {
    return TakeWord("--isolate", v, {"none", "fault", "full"}, options.isolate);
  });
  take("--share", [&](const std::string& v) { return TakeShare(v, options); });
  take("--priority", [&](const std::string& v) {
    return TakeWord("--priority", v, {"latency", "normal", "best-effort"}, options.priority);
  });
  take("--restart", [&](const std::string& v) { return TakeRestart(v, options); });
  take("--processes", [&](const std::string& v) { return TakeProcesses(v, options); });
  take("--place",
       [&](const std::string& v) { return TakeWord("--place", v, {"pack", "spread"}, options.place); });
  take("--cpu-affinity", [&](const std::string& v) {
    return TakeWord("--cpu-affinity", v, {"auto", "none"}, options.cpu_affinity);
  });
  if (status && line->Has("--label")) {
    for (const std::string& label : line->values.at("--label")) {
      if (status) status = TakeLabel(label, options);
    }
  }
  take("--time", [&](const std::string& v) -> Status {
    const auto time = ParseDuration(v);
    if (!time) return Under("--time", time.error());
    if (time->count() == 0)
      return Wrong("--time", v, "no program ends in no time", "write for example --time 2h");
    options.time = *time;
    return {};
  });
  // "--wait" alone has the value ""; "--wait=" looks the same to us and means the same.
  take("--wait", [&](const std::string& v) -> Status {
    if (v.empty()) return {};
    const auto limit = ParseDuration(v);
    if (!limit) return Under("--wait", limit.error());
    options.wait_limit = *limit;
    return {};
  });
  if (!status) return tl::unexpected(status.error());
  if (const Status s = CheckTogether(*line, options); !s) return tl::unexpected(s.error());
  if (const Status s = CheckMode(*line, options); !s) return tl::unexpected(s.error());
  return options;
}

}  // namespace gpumux::cli
