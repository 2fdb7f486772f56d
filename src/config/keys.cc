// SPDX-License-Identifier: Apache-2.0
#include "config/keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "base/loopback_address.h"
#include "base/units.h"

namespace gpumux::config {
namespace {

constexpr int64_t kMaxPriority = 1000;
constexpr int64_t kMaxCount = 1'000'000;
constexpr size_t kMaxName = 256;

struct Table {
  Path path;
  const char* help;
};
const std::vector<Table>& Tables() {
  static const std::vector<Table> tables = {
      {{"daemon"}, "gpumuxd itself"},
      {{"gate"}, "Best-effort tenants beside latency-critical ones"},
      {{"history"}, "Tenants that have ended"},
      {{"idle"}, "Tenants that hold memory and launch no kernel"},
      {{"metrics"}, "Figures for Prometheus"},
      {{"mps"}, "Mode mps"},
      {{"placement"}, "Which GPU a guarantee goes to"},
      {{"quota", "user", kAnyName}, "At once, over all GPUs, by one user"},
      {{"quota", "group", kAnyName}, "At once, over all GPUs, by all members of a group together"},
      {{"quota", "every-user"}, "At once, over all GPUs, by each user whom no [quota.user.NAME] names"},
      {{"run"}, "What `gpumux run` does when its options do not say otherwise"},
  };
  return tables;
}

std::vector<Key> MakeKeys() {
  std::vector<Key> keys = {
      {.path = {"daemon", "idle_exit"},
       .type = Type::kDuration,
       .help = "how long a daemon stays without a tenant",
       .unset = "30s for a daemon that `gpumux run` started, else for ever",
       .example = "\"10m\""},
      {.path = {"daemon", "log_level"},
       .type = Type::kWord,
       .help = "the least that is logged",
       .unset = "info",
       .example = "\"debug\"",
       .words = {"debug", "info", "warning", "error"},
       .variable = "GPUMUX_LOG"},
      {.path = {"daemon", "socket_group"},
       .type = Type::kGroup,
       .help =
           "whose members may use the machine's daemon, where it opens its sockets itself; systemd's have "
           "`SocketGroup=` in gpumuxd.socket and gpumuxd-api.socket",
       .unset = "gpumux, or root alone where there is no such group",
       .example = "\"users\""},
      {.path = {"gate", "budget_us"},
       .type = Type::kInteger,
       .help = "microseconds of predicted work of a best-effort tenant between two looks at its gate: with "
               "less a "
               "latency-critical one waits less, and each look costs a microsecond",
       .unset = "100",
       .example = "50",
       .least = 10,
       .most = 10000},
      {.path = {"gate", "max_closed"},
       .type = Type::kDuration,
       .help = "how long latency-critical tenants hold the kernels of another back without a break",
       .unset = "1s",
       .example = "\"200ms\""},
      {.path = {"gate", "min_open_percent"},
       .type = Type::kInteger,
       .help = "of every second, that best-effort tenants have at the least; 0: no such part",
       .unset = "5",
       .example = "10",
       .least = 0,
       .most = 100},
      {.path = {"history", "keep"},
       .type = Type::kDuration,
       .help = "how long past tenants are kept",
       .unset = "365d",
       .example = "\"90d\""},
      {.path = {"idle", "after"},
       .type = Type::kDuration,
       .help = "how long without a launch",
       .unset = "10m",
       .example = "\"1h\""},
      {.path = {"idle", "policy"},
       .type = Type::kWord,
       .help = "what is done then, once until it works again: \"notify\": an event; \"reclaim\": an event, "
               "and its processes are asked to give back memory that they only cache (on_reclaim)",
       .unset = "off",
       .example = "\"reclaim\"",
       .words = {"off", "notify", "reclaim"}},
      {.path = {"metrics", "listen"},
       .type = Type::kLoopback,
       .help =
           "where /metrics is served on TCP, and nothing else: anybody on this machine can read there what "
           "`gpumux status` shows of other users' tenants",
       .unset = "on the API's socket alone",
       .example = "\"127.0.0.1:9835\""},
      {.path = {"metrics", "labels"},
       .type = Type::kBoolean,
       .help = "whether whoever reads metrics sees the labels pod, namespace, container and hpc_job of every "
               "tenant, not of their own alone",
       .unset = "false",
       .example = "true"},
      {.path = {"mps", "hold_min"},
       .type = Type::kDuration,
       .help = "how long the descriptors of a client that died at work are held at least",
       .unset = "3s",
       .example = "\"5s\""},
      {.path = {"mps", "hold_max"},
       .type = Type::kDuration,
       .help = "and at most, whatever its work is expected to take; no more than 10 minutes",
       .unset = "60s",
       .example = "\"2m\""},
      {.path = {"mps", "idle_time"},
       .type = Type::kDuration,
       .help = "how long a control daemon stays without a tenant",
       .unset = "30s",
       .example = "\"5m\""},
      {.path = {"placement", "fill"},
       .type = Type::kWord,
       .help = "\"pack\": the fullest GPU that holds it, so that large pieces stay whole; \"spread\": the "
               "emptiest, so that neighbours are few",
       .unset = "pack",
       .example = "\"spread\"",
       .words = {"pack", "spread"}},
  };
  for (const Path& table :
       {Path{"quota", "user", kAnyName}, {"quota", "group", kAnyName}, {"quota", "every-user"}}) {
    const auto path = [&](const char* name) {
      Path out = table;
      out.emplace_back(name);
      return out;
    };
    keys.push_back({.path = path("memory"),
                    .type = Type::kSize,
                    .help = "the sum of their guarantees",
                    .unset = "as much as there is",
                    .example = "\"60GiB\""});
    keys.push_back({.path = path("tenants"),
                    .type = Type::kInteger,
                    .help = "how many tenants run; those that wait do not count",
                    .unset = "any number",
                    .example = "4",
                    .most = kMaxCount});
    keys.push_back({.path = path("gpus"),
                    .type = Type::kInteger,
                    .help = "how many GPUs they are on",
                    .unset = "all",
                    .example = "2",
                    .most = kMaxCount});
    keys.push_back({.path = path("priority"),
                    .type = Type::kInteger,
                    .help = "of those that wait the highest goes first, equals by arrival",
                    .unset = "0",
                    .example = "10",
                    .least = -kMaxPriority,
                    .most = kMaxPriority});
  }
  const std::vector<Key> run = {
      {.path = {"run", "mem"},
       .type = Type::kMemoryRange,
       .help = "`--mem`; `--no-mem` undoes it",
       .unset = "no guarantee",
       .example = "\"10GiB:20GiB\"",
       .variable = "GPUMUX_MEM"},
      {.path = {"run", "wait"},
       .type = Type::kWait,
       .help = "`--wait`, `--no-wait`, or at most how long",
       .unset = "true",
       .example = "\"30m\"",
       .variable = "GPUMUX_WAIT"},
      {.path = {"run", "mode"},
       .type = Type::kWord,
       .help = "`--mode`",
       .unset = "auto",
       .example = "\"timeslice\"",
       .words = {"auto", "exclusive", "timeslice", "turns"},
       .variable = "GPUMUX_MODE"},
      {.path = {"run", "isolate"},
       .type = Type::kWord,
       .help = "`--isolate`",
       .unset = "fault",
       .example = "\"none\"",
       .words = {"none", "fault"},
       .variable = "GPUMUX_ISOLATE"},
      {.path = {"run", "cpu_affinity"},
       .type = Type::kWord,
       .help = "`--cpu-affinity`",
       .unset = "none",
       .example = "\"auto\"",
       .words = {"auto", "none"},
       .variable = "GPUMUX_CPU_AFFINITY"},
      {.path = {"run", "strict"},
       .type = Type::kBoolean,
       .help = "`--strict`; `--no-strict` undoes it",
       .unset = "false",
       .example = "true"},
      {.path = {"run", "summary"},
       .type = Type::kBoolean,
       .help = "`--summary`; `--no-summary` undoes it",
       .unset = "false",
       .example = "true"},
      {.path = {"run", "quiet"},
       .type = Type::kBoolean,
       .help = "`--quiet`; `--no-quiet` undoes it",
       .unset = "false",
       .example = "true"},
  };
  keys.insert(keys.end(), run.begin(), run.end());
  return keys;
}

bool BeginsLike(const Path& pattern, const Path& path, size_t parts) {
  for (size_t i = 0; i < parts; ++i) {
    if (pattern[i] != kAnyName && pattern[i] != path[i]) return false;
  }
  return true;
}

std::string Shown(const TomlValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    std::string out = "'";
    for (const char c : std::string_view(*text).substr(0, 60))
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    return out + "'";
  }
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* other = std::get_if<OtherValue>(&value)) return other->name;
  return "a table";
}

tl::unexpected<Error> Wrong(const Key& key, const TomlValue& value, const std::string& why) {
  return Fail(Code::kInvalid, fmt::format("{} {}", Shown(value), why),
              fmt::format("write for example {}", key.example));
}

tl::unexpected<Error> WrongType(const Key& key, const TomlValue& value) {
  const char* needed = "";
  switch (key.type) {
    case Type::kBoolean:
      needed = "is neither true nor false";
      break;
    case Type::kInteger:
      needed = "is not a whole number";
      break;
    case Type::kSize:
    case Type::kMemoryRange:
      needed = "is not an amount of memory in quotes";
      break;
    case Type::kDuration:
      needed = "is not a time in quotes";
      break;
    case Type::kWait:
      needed = "is neither true nor false nor a time in quotes";
      break;
    case Type::kWord:
      needed = "is not a word in quotes";
      break;
    case Type::kLoopback:
      needed = "is not an address in quotes";
      break;
    case Type::kGroup:
      needed = "is not the name of a group in quotes";
      break;
  }
  return Wrong(key, value, needed);
}

// As long as a name may be on Linux, and nothing that could not be one.
bool IsName(const std::string& text) {
  return !text.empty() && text.size() <= kMaxName && text.find_first_of(":,/") == std::string::npos &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c != 0x7f; });
}

Result<Value> CheckText(const Key& key, const std::string& text) {
  switch (key.type) {
    case Type::kSize: {
      const auto size = ParseMemorySize(text);
      if (!size) return tl::unexpected(size.error());
      if (size->bytes == 0) return Wrong(key, text, "is a part of a GPU; this is over all GPUs");
      return Value(text);
    }
    case Type::kMemoryRange: {
      const auto range = ParseMemoryRange(text);
      if (!range) return tl::unexpected(range.error());
      return Value(text);
    }
    case Type::kDuration:
    case Type::kWait: {
      const auto time = ParseDuration(text);
      if (!time) return tl::unexpected(time.error());
      return Value(text);
    }
    case Type::kWord:
      if (std::find(key.words.begin(), key.words.end(), text) == key.words.end())
        return Fail(Code::kInvalid, fmt::format("{} is unknown", Shown(text)),
                    fmt::format("one of: {}", fmt::join(key.words, ", ")));
      return Value(text);
    case Type::kLoopback: {
      const auto address = ParseLoopbackAddress(text);
      if (!address)
        return Fail(Code::kInvalid, fmt::format("{}: {}", Shown(text), address.error().message),
                    address.error().hint);
      return Value(text);
    }
    case Type::kGroup:
      if (!IsName(text)) break;
      return Value(text);
    case Type::kBoolean:
    case Type::kInteger:
      break;
  }
  return WrongType(key, text);
}

}  // namespace

std::span<const Key> AllKeys() {
  static const std::vector<Key> keys = MakeKeys();
  return keys;
}

const char* TableHelp(const Key& key) {
  for (const Table& table : Tables()) {
    if (table.path.size() + 1 == key.path.size() && BeginsLike(table.path, key.path, table.path.size()))
      return table.help;
  }
  return "";
}

const Key* FindKey(const Path& path) {
  for (const Key& key : AllKeys()) {
    if (key.path.size() == path.size() && BeginsLike(key.path, path, path.size())) return &key;
  }
  return nullptr;
}

bool IsTable(const Path& path) {
  return std::any_of(AllKeys().begin(), AllKeys().end(), [&](const Key& key) {
    return key.path.size() > path.size() && BeginsLike(key.path, path, path.size());
  });
}

std::vector<std::string> NamesBeside(const Path& path) {
  std::vector<std::string> names;
  for (const Key& key : AllKeys()) {
    if (key.path.size() < path.size() || !BeginsLike(key.path, path, path.size() - 1)) continue;
    const std::string& name = key.path[path.size() - 1];
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

Result<Value> CheckValue(const Key& key, const TomlValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return CheckText(key, *text);
  if (const auto* boolean = std::get_if<bool>(&value);
      boolean && (key.type == Type::kBoolean || key.type == Type::kWait))
    return Value(*boolean);
  if (const auto* integer = std::get_if<int64_t>(&value); integer && key.type == Type::kInteger) {
    if (*integer < key.least || *integer > key.most)
      return Wrong(key, value, fmt::format("is not from {} to {}", key.least, key.most));
    return Value(*integer);
  }
  return WrongType(key, value);
}

Result<Value> ParseVariable(const Key& key, std::string_view text) {
  if (key.type == Type::kBoolean || key.type == Type::kWait) {
    if (text == "true" || text == "false") return Value(text == "true");
    if (key.type == Type::kBoolean) return WrongType(key, std::string(text));
  }
  if (key.type == Type::kInteger) {
    int64_t integer = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), integer);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size())
      return WrongType(key, std::string(text));
    return CheckValue(key, integer);
  }
  return CheckText(key, std::string(text));
}

std::string FormatValue(const Value& value) {
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  return QuoteToml(std::get<std::string>(value));
}

std::string_view Name(Type type) {
  switch (type) {
    case Type::kBoolean:
      return "true or false";
    case Type::kInteger:
      return "whole number";
    case Type::kSize:
      return "size";
    case Type::kMemoryRange:
      return "size, or guarantee:limit";
    case Type::kDuration:
      return "time";
    case Type::kWait:
      return "true, false or a time";
    case Type::kWord:
      return "word";
    case Type::kLoopback:
      return "loopback address and port";
    case Type::kGroup:
      return "name of a group";
  }
  return "";
}

}  // namespace gpumux::config
