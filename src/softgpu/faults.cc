// SPDX-License-Identifier: Apache-2.0
#include "softgpu/faults.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "sim/gpu_spec_parser.h"

namespace gpumux::softgpu {

namespace {

using std::chrono::nanoseconds;

constexpr std::string_view kCudaNames[] = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) #symbol,
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
};
constexpr std::string_view kNvmlNames[] = {
#define GPUMUX_NVML_ENTRY(symbol) #symbol,
#include "softgpu/nvml/entry_points.inc"
#undef GPUMUX_NVML_ENTRY
};
struct CodeName {
  std::string_view name;
  int value;
};
constexpr CodeName kCodes[] = {
#define GPUMUX_RESULT(name, value, text) {#name, value},
#include "softgpu/driver/error_codes.inc"
#undef GPUMUX_RESULT
#define GPUMUX_NVML_RESULT(name, value, text) {#name, value},
#include "softgpu/nvml/results.inc"
#undef GPUMUX_NVML_RESULT
};

constexpr uint64_t kMaxCount = 1'000'000'000'000;
constexpr nanoseconds kMaxTime = std::chrono::hours(1);
constexpr int kMaxCode = 9999;
constexpr uint64_t kMaxGpu = 64;
constexpr int kCudaUnknown = 999, kCudaNotFound = 500;
constexpr int kNvmlFunctionNotFound = 13, kNvmlLost = 15;

bool IsNvml(std::string_view name) { return name.starts_with("nvml"); }

// One word for all that changes partitions, so that a rule counts them together.
constexpr std::string_view kMigChanges = "nvml-mig-changes";
bool ChangesMig(std::string_view name) {
  constexpr std::string_view kCalls[] = {
      "nvmlDeviceSetMigMode",
      "nvmlDeviceCreateGpuInstance",
      "nvmlDeviceCreateGpuInstanceWithPlacement",
      "nvmlGpuInstanceDestroy",
      "nvmlGpuInstanceCreateComputeInstance",
      "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
      "nvmlComputeInstanceDestroy",
  };
  return std::find(std::begin(kCalls), std::end(kCalls), name) != std::end(kCalls);
}

// Returns text, not a code.
bool ReturnsCode(std::string_view name) { return name != "nvmlErrorString"; }

// Calls that a GPU that is gone does not change.
bool NeedsDevice(std::string_view name) {
  if (IsNvml(name)) {
    return name.starts_with("nvmlDevice") && !name.starts_with("nvmlDeviceGetCount");
  }
  for (std::string_view other : {"cuGetErrorName", "cuGetErrorString", "cuDriverGetVersion",
                                 "cuGetProcAddress", "cuGetProcAddress_v2", "cuGetExportTable"}) {
    if (name == other) return false;
  }
  return true;
}

bool Known(const FaultRule& rule) {
  const auto covered = [&](std::string_view name) { return ReturnsCode(name) && rule.Covers(name); };
  return std::any_of(std::begin(kCudaNames), std::end(kCudaNames), covered) ||
         std::any_of(std::begin(kNvmlNames), std::end(kNvmlNames), covered);
}

std::string Quote(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text.substr(0, 40)) quoted += c >= ' ' && c < 127 && c != '"' ? c : '?';
  return quoted + "\"";
}

// The words of one rule, taken one by one.
class Words {
 public:
  Words(std::string_view text, size_t line) : rest_(text), line_(line) { Skip(); }
  bool empty() const { return rest_.empty(); }
  std::string_view Next() {
    size_t end = 0;
    while (end < rest_.size() && !Space(rest_[end])) ++end;
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(end);
    Skip();
    return word;
  }
  bool Take(std::string_view word) {
    Words copy = *this;
    if (copy.Next() != word) return false;
    *this = copy;
    return true;
  }
  tl::unexpected<Error> Wrong(const std::string& what) const {
    return Fail(Code::kInvalid, "line " + std::to_string(line_) + ": " + what,
                "docs/reference/software-gpu-faults.md has the grammar");
  }

 private:
  static bool Space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  void Skip() {
    while (!rest_.empty() && Space(rest_.front())) rest_.remove_prefix(1);
  }
  std::string_view rest_;
  size_t line_;
};

std::optional<uint64_t> Count(std::string_view word) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value == 0 || value > kMaxCount) {
    return std::nullopt;
  }
  return value;
}

// "250us", "2s". Whole numbers alone.
std::optional<nanoseconds> Time(std::string_view word) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(word.data() + word.size() - end));
  const uint64_t scale = unit == "ns"   ? 1
                         : unit == "us" ? 1'000
                         : unit == "ms" ? 1'000'000
                         : unit == "s"  ? 1'000'000'000
                                        : 0;
  if (scale == 0 || value == 0 || value > static_cast<uint64_t>(kMaxTime.count()) / scale)
    return std::nullopt;
  return nanoseconds(value * scale);
}

Status ParseFunction(Words* words, FaultRule* rule) {
  const std::string_view name = words->Next();
  rule->function = name;
  const bool odd = name.substr(0, name.size() - 1).find('*') != std::string_view::npos;
  if (name.empty() || name == "*" || odd || !Known(*rule)) {
    return words->Wrong(Quote(name) + " is no function of CUDA 13.0 or NVML that returns a code");
  }
  return {};
}

Status ParseWhen(Words* words, FaultWhen* when) {
  if (words->empty()) return {};
  const std::string_view how = words->Next();
  const auto number = Count(words->Next());
  if (!number || (how != "on" && how != "from" && how != "every")) {
    return words->Wrong("expected \"on N\", \"from N [to N]\" or \"every N\"");
  }
  if (how == "every") {
    when->first = when->every = *number;
    return {};
  }
  when->first = *number;
  if (how == "on") when->last = *number;
  if (how == "from" && words->Take("to")) {
    const auto last = Count(words->Next());
    if (!last || *last < *number)
      return words->Wrong("\"to\" wants a number that is not less than that of \"from\"");
    when->last = *last;
  }
  return {};
}

Status ParseFail(Words* words, FaultRule* rule) {
  if (auto status = ParseFunction(words, rule); !status) return status;
  if (!words->Take("with")) return words->Wrong("expected \"with\" and a code");
  const std::string_view word = words->Next();
  if (const auto number = Count(word); number && *number <= kMaxCode) {
    rule->code = static_cast<int>(*number);
  } else {
    const auto* found = std::find_if(std::begin(kCodes), std::end(kCodes),
                                     [&](const CodeName& code) { return code.name == word; });
    if (found == std::end(kCodes) || found->value == 0) {
      return words->Wrong(Quote(word) + " is no error's name, nor a number from 1 to 9999");
    }
    if (word.starts_with("NVML") != IsNvml(rule->function)) {
      return words->Wrong(Quote(word) + " is not a code of " + Quote(rule->function));
    }
    rule->code = found->value;
  }
  return ParseWhen(words, &rule->when);
}

Status ParseLost(Words* words, FaultRule* rule) {
  if (words->empty()) return {};
  if (!words->Take("after")) return words->Wrong("expected \"after\"");
  const std::string_view amount = words->Next();
  if (const auto calls = Count(amount); calls) {
    if (!words->Take("calls")) return words->Wrong("expected \"calls\", or a time such as 2s");
    rule->when.first = *calls + 1;
    if (!words->Take("for")) return {};
    const auto lasting = Count(words->Next());
    if (!lasting || !words->Take("calls")) return words->Wrong("expected \"for N calls\"");
    rule->when.last = *calls + *lasting;
    return {};
  }
  const auto after = Time(amount);
  if (!after) return words->Wrong(Quote(amount) + " is neither a number of calls nor a time such as 2s");
  rule->timed = true;
  rule->after = *after;
  if (!words->Take("for")) return {};
  const auto lasting = Time(words->Next());
  if (!lasting) return words->Wrong("expected \"for\" and a time such as 2s");
  rule->lasting = *lasting;
  return {};
}

Status ParseOff(Words* words, FaultRule* rule) {
  const std::string_view word = words->Next();
  const auto number = word == "0" ? std::optional<uint64_t>(0) : Count(word);
  if (!number || *number >= kMaxGpu) return words->Wrong(Quote(word) + " is not the number of a GPU");
  rule->gpu = static_cast<unsigned>(*number);
  return {};
}

Status ParseDriver(Words* words, FaultScript* script) {
  const std::string_view version = words->Next();
  if (!script->driver_version.empty()) return words->Wrong("a second driver version");
  if (!sim::IsDriverVersion(version))
    return words->Wrong(Quote(version) + " is not a version such as 550.54.15");
  script->driver_version = version;
  script->cuda_version = sim::CudaVersionOfDriver(version);
  if (words->Take("cuda")) {
    const std::string_view cuda = words->Next();
    const size_t dot = cuda.find('.');
    const auto major = Count(cuda.substr(0, dot));
    const std::string_view minor = dot != std::string_view::npos ? cuda.substr(dot + 1) : "";
    const bool digit = minor.size() == 1 && minor[0] >= '0' && minor[0] <= '9';
    script->cuda_version =
        major && digit && *major < 100 ? static_cast<int>(*major) * 1000 + (minor[0] - '0') * 10 : 0;
    if (script->cuda_version < 11000 || script->cuda_version > 13000) {
      return words->Wrong(Quote(cuda) + " is not a CUDA version from 11.0 to 13.0");
    }
  } else if (script->cuda_version == 0) {
    return words->Wrong("the CUDA version of " + Quote(version) + " is not known: add \"cuda 12.4\", say");
  }
  return {};
}

Status ParseRule(Words words, FaultScript* script) {
  using Kind = FaultRule::Kind;
  FaultRule rule;
  const std::string_view what = words.Next();
  Status status;
  if (what == "driver") {
    status = ParseDriver(&words, script);
  } else if (what == "fail") {
    rule.kind = Kind::kFail;
    status = ParseFail(&words, &rule);
  } else if (what == "slow") {
    rule.kind = Kind::kSlow;
    status = ParseFunction(&words, &rule);
    if (status) {
      const bool by = words.Take("by");
      const auto delay = Time(words.Next());
      if (!by || !delay) return words.Wrong("expected \"by\" and a time such as 20ms, of an hour at most");
      rule.delay = *delay;
      status = ParseWhen(&words, &rule.when);
    }
  } else if (what == "lack") {
    rule.kind = Kind::kLack;
    status = ParseFunction(&words, &rule);
  } else if (what == "lost") {
    rule.kind = Kind::kLost;
    status = ParseLost(&words, &rule);
  } else if (what == "mps") {
    if (!words.Take("hangs")) return words.Wrong("expected \"mps hangs\"");
    script->mps_hangs = true;
  } else if (what == "off") {
    rule.kind = Kind::kOff;
    status = ParseOff(&words, &rule);
  } else {
    return words.Wrong(Quote(what) + " is none of fail, slow, lack, lost, off, driver, mps");
  }
  if (!status) return status;
  if (!words.empty()) return words.Wrong("too much: " + Quote(words.Next()));
  if (what != "driver" && what != "mps") script->rules.push_back(std::move(rule));
  return {};
}

}  // namespace

bool FaultWhen::Means(uint64_t call) const {
  return call >= first && call <= last && (call - first) % every == 0;
}

bool FaultRule::Covers(std::string_view name) const {
  if (function.empty()) return true;
  if (function == kMigChanges) return ChangesMig(name);
  if (function.back() != '*') return name == function;
  return name.starts_with(std::string_view(function).substr(0, function.size() - 1));
}

Result<FaultScript> ParseFaults(std::string_view text) {
  if (text.size() > kMaxFaultScript) return Fail(Code::kInvalid, "the script is larger than 64 KiB");
  FaultScript script;
  size_t line = 1;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view rest = text.substr(0, newline);
    text = newline == std::string_view::npos ? std::string_view() : text.substr(newline + 1);
    rest = rest.substr(0, rest.find('#'));
    while (!rest.empty()) {
      const size_t semicolon = rest.find(';');
      const Words words(rest.substr(0, semicolon), line);
      rest = semicolon == std::string_view::npos ? std::string_view() : rest.substr(semicolon + 1);
      if (words.empty()) continue;
      if (script.rules.size() >= kMaxFaultRules) return words.Wrong("more than 1000 rules");
      if (auto status = ParseRule(words, &script); !status) return tl::unexpected(status.error());
    }
    ++line;
  }
  return script;
}

FaultRun::FaultRun(FaultScript script, std::chrono::steady_clock::time_point begin)
    : script_(std::move(script)),
      begin_(begin),
      calls_(std::make_unique<std::atomic<uint64_t>[]>(script_.rules.size())) {}

bool FaultRun::Lacks(std::string_view name) const {
  return std::any_of(script_.rules.begin(), script_.rules.end(), [&](const FaultRule& rule) {
    return rule.kind == FaultRule::Kind::kLack && rule.Covers(name);
  });
}

bool FaultRun::IsOff(unsigned gpu) const {
  return std::any_of(script_.rules.begin(), script_.rules.end(), [&](const FaultRule& rule) {
    return rule.kind == FaultRule::Kind::kOff && rule.gpu == gpu;
  });
}

FaultRun::Verdict FaultRun::OnCall(std::string_view name, std::chrono::steady_clock::time_point now) {
  using Kind = FaultRule::Kind;
  Verdict verdict;
  if (!ReturnsCode(name)) return verdict;
  const bool nvml = IsNvml(name);
  if (Lacks(name)) {
    verdict.code = nvml ? kNvmlFunctionNotFound : kCudaNotFound;
    return verdict;
  }
  for (size_t i = 0; i < script_.rules.size(); ++i) {
    const FaultRule& rule = script_.rules[i];
    if (rule.kind == Kind::kLack || rule.kind == Kind::kOff || !rule.Covers(name)) continue;
    if (rule.kind == Kind::kLost && !NeedsDevice(name)) continue;
    const uint64_t call = calls_[i].fetch_add(1, std::memory_order_relaxed) + 1;
    const nanoseconds age = now - begin_;
    const bool means =
        rule.timed ? age >= rule.after && (rule.lasting == nanoseconds(0) || age < rule.after + rule.lasting)
                   : rule.when.Means(call);
    if (!means) continue;
    if (rule.kind == Kind::kSlow) {
      verdict.delay += rule.delay;
    } else if (verdict.code < 0) {
      verdict.code = rule.kind == Kind::kFail ? rule.code : nvml ? kNvmlLost : kCudaUnknown;
    }
  }
  return verdict;
}

}  // namespace gpumux::softgpu
