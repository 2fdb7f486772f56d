// SPDX-License-Identifier: Apache-2.0
#include "cli/refusal_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/units.h"
#include "cli/envelope.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kNamed = 3;  // holders in one line

std::optional<uint64_t> Bytes(const Json& object, const char* key) {
  const Json& value = At(object, key);
  const bool natural = value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0);
  return natural ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

std::string Size(const std::optional<uint64_t>& bytes) {
  return bytes ? FormatBytes(*bytes) : std::string("an unknown part");
}

std::string Holders(const Json& last) {
  std::vector<std::string> names;
  uint64_t more = Bytes(last, "more_holders").value_or(0) + Bytes(last, "more_unmanaged").value_or(0);
  const auto add = [&](const std::string& name) {
    if (names.size() < kNamed)
      names.push_back(name);
    else
      ++more;
  };
  // Who is outside gpumux is named in any case: nothing else in this line tells of it.
  if (const Json& outside = At(last, "unmanaged"); outside.is_array()) {
    for (const Json& process : outside) {
      const std::string name = TextAt(process, "name", 24), owner = TextAt(process, "owner", 32);
      add(fmt::format("pid {} ({}{}outside gpumux) {}", Bytes(process, "pid").value_or(0),
                      name.empty() ? "" : name + ", ", owner.empty() ? "" : "of " + owner + ", ",
                      Size(Bytes(process, "mem_used_bytes"))));
    }
  }
  if (const Json& holders = At(last, "holders"); holders.is_array()) {
    for (const Json& holder : holders)
      add(fmt::format("{} (of {}) {}", TextAt(holder, "name", 24), TextAt(holder, "owner", 32),
                      Size(Bytes(holder, "mem_held_bytes"))));
  }
  // Much less than a GiB of it is there on every GPU.
  if (const auto unexplained = Bytes(last, "gpu_mem_unexplained_bytes"); unexplained && *unexplained >= kGiB)
    add("nobody that NVML knows " + Size(unexplained));
  if (names.empty()) return "";
  return fmt::format("{}{}", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

// What would have been enough, in all.
std::optional<uint64_t> Needed(const Json& last) {
  const auto asked = Bytes(last, "mem_asked_bytes"), used = Bytes(last, "mem_used_bytes");
  return asked && used ? std::optional(*asked + *used) : std::nullopt;
}

// The --mem that would have been enough: "9GiB" where it has to be guaranteed; else
// "4GiB:9GiB", which leaves the guarantee as it is.
std::string MemFor(const Json& last, bool guaranteed_too) {
  const auto guaranteed = Bytes(last, "mem_guaranteed_bytes"), limit = Bytes(last, "mem_limit_bytes");
  const bool range = !guaranteed_too && guaranteed && limit && *limit > *guaranteed && *guaranteed > 0;
  return (range ? FormatRoundedUp(*guaranteed) + ":" : "") + FormatRoundedUp(*Needed(last));
}

// The tenant runs, and would be given so much if it were asked for now. `gpus` as
// in /v1/status; its other GPUs get as much.
bool MayBeSet(const Json& tenant, const Json& last, bool guaranteed_too, const Json& gpus) {
  if (TextAt(tenant, "state") != "running" || !At(tenant, "ended").is_null() ||
      !At(tenant, "reservation_pid").is_null() || TextAt(tenant, "mode") == "exclusive" || !gpus.is_array())
    return false;
  const std::string mem = MemFor(last, guaranteed_too);
  const auto range = ParseMemoryRange(mem);
  if (!range) return false;
  const Json& own = At(tenant, "gpus");
  for (const Json& share : own.is_array() ? own : Json::array()) {
    const uint64_t has = std::max(Bytes(share, "mem_guaranteed_bytes").value_or(0),
                                  Bytes(share, "mem_used_bytes").value_or(0));
    const uint64_t more = range->guaranteed.bytes > has ? range->guaranteed.bytes - has : 0;
    const auto there = std::find_if(gpus.begin(), gpus.end(), [&](const Json& gpu) {
      return TextAt(gpu, "uuid") == TextAt(share, "uuid");
    });
    if (there == gpus.end() || Bytes(*there, "mem_promisable_bytes").value_or(0) < more) return false;
  }
  return own.is_array() && !own.empty();
}

// What to do: `otherwise` says it of a new start.
std::string AskFor(const Json& tenant, const Json& last, bool guaranteed_too, const char* otherwise,
                   const Json& gpus) {
  const auto needed = Needed(last), total = Bytes(last, "gpu_mem_total_bytes");
  if (!needed) return fmt::format("{} with --mem", otherwise);
  if (total && *needed > *total)
    return fmt::format("{} in all are more than the GPU's {}", FormatBytes(*needed), FormatBytes(*total));
  const std::string mem = MemFor(last, guaranteed_too);
  if (MayBeSet(tenant, last, guaranteed_too, gpus))
    return fmt::format("there is room for more: gpumux set {} --mem {}", TextAt(tenant, "id", 20), mem);
  return fmt::format("{}: --mem {}", otherwise, mem);
}

std::string OwnLimit(const Json& tenant, const Json& last, const Json& gpus) {
  return fmt::format("its limit of {} was the reason, of which {} were in use; {}",
                     Size(Bytes(last, "mem_limit_bytes")), Size(Bytes(last, "mem_used_bytes")),
                     AskFor(tenant, last, false, "ask for more", gpus));
}

std::string GpuFull(const Json& tenant, const Json& last, const Json& gpus) {
  const std::string holders = Holders(last);
  const auto guaranteed = Bytes(last, "mem_guaranteed_bytes");
  const std::string own = guaranteed && *guaranteed > 0
                              ? fmt::format(" {} were guaranteed to it, {} in use, and",
                                            FormatBytes(*guaranteed), Size(Bytes(last, "mem_used_bytes")))
                              : std::string(" Nothing was guaranteed to it, and");
  return fmt::format("the GPU had no room left beside other promises.{} {} were free for all; {}{}; {}", own,
                     Size(Bytes(last, "gpu_mem_promisable_bytes")),
                     holders.empty() ? "" : "the rest is held by ",
                     holders.empty() ? "nobody else holds the rest" : holders,
                     AskFor(tenant, last, true, "have it guaranteed, which waits until there is room", gpus));
}

std::string OwnPart(const Json& last) {
  return fmt::format(
      "the part that the program set for its own process was the reason; its limit is {}, of which {} "
      "were in use: raise the part in the program",
      Size(Bytes(last, "mem_limit_bytes")), Size(Bytes(last, "mem_used_bytes")));
}

uint64_t Count(const Json& refusals) {
  return Bytes(refusals, "own_limit").value_or(0) + Bytes(refusals, "device_full").value_or(0) +
         Bytes(refusals, "own_part").value_or(0);
}

std::string Driver(const Json& last) {
  const Json& outside = At(last, "unmanaged");
  const bool strangers = outside.is_array() && !outside.empty();
  const std::string holders = Holders(last);
  return fmt::format("the driver itself had no room, though gpumux had granted it{}; {}",
                     holders.empty() ? "" : ": the GPU is held by " + holders,
                     strangers ? "end what runs outside gpumux, or start it with gpumux run"
                               : "what is free may be in pieces too small: ask for smaller ones");
}

}  // namespace

std::string RefusalCount(const Json& refusals) {
  const uint64_t count = Count(refusals);
  std::string out = fmt::format("{} {}", count, count == 1 ? "refusal" : "refusals");
  const auto last = Bytes(refusals, "last_refused_bytes");
  if (count == 0 || !last || *last == 0) return out;
  const auto index = Bytes(At(refusals, "last"), "gpu_index");
  return out + fmt::format(" (the last of {}{})", FormatBytes(*last),
                           index ? fmt::format(" on GPU {}", *index) : "");
}

std::string RefusalReason(const Json& tenant, const Json& gpus) {
  const Json& refusals = At(tenant, "refusals");
  if (Count(refusals) == 0) return "";
  const Json& last = At(refusals, "last");
  const std::string cause = TextAt(last, "cause");
  if (cause == "own_limit") return OwnLimit(tenant, last, gpus);
  if (cause == "gpu_full") return GpuFull(tenant, last, gpus);
  if (cause == "own_part") return OwnPart(last);
  if (cause == "driver") return Driver(last);
  // Of a daemon that has ended meanwhile.
  return Bytes(refusals, "own_limit").value_or(0) > 0
             ? "its limit was the reason; ask for more with --mem"
             : "the GPU had no room left beside other promises; guarantee it with --mem";
}

}  // namespace gpumux::cli
