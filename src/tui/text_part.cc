// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "base/utf8.h"
#include "tui/parts.h"

namespace gpumux::tui {
namespace {

class Lines {
 public:
  void Head(std::string text) {
    if (!lines_.empty()) lines_.push_back({});
    lines_.push_back({std::move(text), Ink::kStrong});
  }
  void Say(std::string text, Ink ink = Ink::kPlain) { lines_.push_back({std::move(text), ink}); }
  void Row(const char* name, const std::string& value, Ink ink = Ink::kPlain) {
    lines_.push_back({fmt::format("  {:<13} {}", name, value.empty() ? kUnknown : value), ink});
  }
  std::vector<TextLine> Take() { return std::move(lines_); }

 private:
  std::vector<TextLine> lines_;
};

std::string Ratio(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.0f} %", *ratio * 100) : kUnknown;
}

std::string Number(const std::optional<uint64_t>& number) {
  return number ? std::to_string(*number) : kUnknown;
}

std::string SecondsText(const std::optional<double>& seconds) {
  if (!seconds || !(*seconds >= 0) || *seconds > 1e9) return kUnknown;
  return FormatDuration(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(*seconds)));
}

void Promise(Lines& lines, const TenantSample& tenant) {
  lines.Head("Promise");
  lines.Row("memory", fmt::format("{} guaranteed, limit {}", BytesText(tenant.guaranteed),
                                  tenant.limit ? BytesText(tenant.limit) : tenant.limit_reason));
  lines.Row("mode", tenant.mode + (tenant.mode_reason.empty() ? "" : " (" + tenant.mode_reason + ")"));
  lines.Row("share",
            tenant.share_min || tenant.share_max
                ? fmt::format("at least {}, at most {}", Ratio(tenant.share_min), Ratio(tenant.share_max))
                : std::string("none is promised"));
  lines.Row("priority", tenant.priority);
  lines.Row("isolation", tenant.isolation + (tenant.strict ? ", strict" : ""));
  lines.Row("time limit", tenant.time_limit_seconds ? SecondsText(tenant.time_limit_seconds) : "none");
  const bool not_enforced = tenant.enforced == "not enforced";
  lines.Row(
      "enforced by",
      tenant.enforced_reason.empty() ? tenant.enforced : tenant.enforced + ": " + tenant.enforced_reason,
      not_enforced ? Ink::kBad : Ink::kPlain);
  lines.Row("compute", tenant.compute.empty() ? tenant.compute_reason : tenant.compute);
}

void Memory(Lines& lines, const TenantSample& tenant) {
  lines.Head("Memory");
  for (const TenantGpuSample& gpu : tenant.gpus) {
    lines.Say(fmt::format("  GPU {:<9} used {}, guaranteed {}, limit {}, peak {}", gpu.label,
                          BytesText(gpu.used), BytesText(gpu.guaranteed), BytesText(gpu.limit),
                          BytesText(gpu.peak)));
    if (gpu.at_risk.value_or(0) > 0)
      lines.Say(fmt::format("  AT RISK       up to {}: {}", BytesText(gpu.at_risk), gpu.at_risk_why),
                Ink::kBad);
  }
  lines.Row("refused", fmt::format("{} allocations", Number(tenant.refusals)),
            tenant.refusals.value_or(0) > 0 ? Ink::kWarning : Ink::kPlain);
  if (tenant.above_limit) lines.Row("ABOVE LIMIT", "gets no more: " + tenant.above_limit_reason, Ink::kBad);
}

void TimeOnGpu(Lines& lines, const TenantSample& tenant, const Model& model) {
  lines.Head("Time on the GPU");
  const History& history = model.Of(tenant.id);
  const std::string why = WhyNotCounted(tenant);
  lines.Row("held", why.empty() ? Percent(history.Last()) + " of the last interval" : "not known: " + why);
  if (const auto& turns = tenant.turns) {
    lines.Row("turns",
              fmt::format("{}; {} ended, {} overran, {} not used; {} s of GPU time; its part now {}",
                          turns->state, Number(turns->turns), Number(turns->overran), Number(turns->unused),
                          turns->gpu_seconds ? fmt::format("{:.1f}", *turns->gpu_seconds) : kUnknown,
                          Ratio(turns->part_ratio)));
  }
  if (const auto& gate = tenant.gate) {
    lines.Row("gate", gate->role == "is held back"
                          ? fmt::format("{} ({}), {} waits, {} closed, forced open {} times", gate->role,
                                        gate->held_by, Number(gate->waits), SecondsText(gate->closed_seconds),
                                        Number(gate->forced_open))
                          : fmt::format("{}, busy for {}", gate->role, SecondsText(gate->busy_seconds)));
  }
  lines.Row("launches",
            fmt::format("{}, {} a second", Number(tenant.launches),
                        history.launches_per_second ? fmt::format("{:.0f}", *history.launches_per_second)
                                                    : kUnknown));
}

void Program(Lines& lines, const TenantSample& tenant) {
  lines.Head("Program");
  lines.Row("command", tenant.command);
  lines.Row("folder", tenant.cwd);
  for (const auto& [key, value] : tenant.labels) lines.Row("label", fmt::format("{}={}", key, value));
  lines.Row("started", tenant.started_at);
  lines.Row("waited", SecondsText(tenant.waited_seconds));
  for (const MemberSample& member : tenant.members) {
    lines.Say(
        fmt::format("  pid {:<9} {}, guard {}, {}{}{}", Number(member.pid), member.name,
                    member.guard.empty() ? kUnknown : member.guard, BytesText(member.charged),
                    member.alive ? "" : ", dead", member.waits.empty() ? "" : ", waits: " + member.waits),
        member.guard == "in force" ? Ink::kPlain : Ink::kWarning);
  }
}

// Where the text of a line begins: behind its name, which two spaces or more end.
int IndentOf(const std::string& text) {
  constexpr size_t kMost = 40;
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos || begin == 0) return 0;
  const size_t gap = text.find("  ", begin);
  const size_t after = gap == std::string::npos ? gap : text.find_first_not_of(' ', gap);
  // npos is far beyond it too.
  return static_cast<int>(after > kMost ? begin : after);
}

}  // namespace

std::vector<TextLine> Wrapped(const std::vector<TextLine>& lines, int width) {
  std::vector<TextLine> out;
  for (const TextLine& line : lines) {
    const int indent = std::min(IndentOf(line.text), width / 2);
    std::u32string rest = Shown(line.text);
    while (true) {
      int used = 0;
      size_t fits = 0, space = 0;
      for (; fits < rest.size() && used + GlyphWidth(rest[fits]) <= width; ++fits) {
        if (rest[fits] == U' ' && used > indent) space = fits;
        used += GlyphWidth(rest[fits]);
      }
      // A word that is longer than a line is broken where the line ends.
      const size_t end = fits == rest.size() || rest[fits] == U' ' || space == 0 ? fits : space;
      std::string text;
      for (const char32_t glyph : rest.substr(0, end)) text += Utf8(glyph);
      out.push_back({std::move(text), line.ink});
      const size_t next = rest.find_first_not_of(U' ', end);
      // Where not even one character fits beside the indent, the rest is left out.
      if (next == std::u32string::npos || next <= static_cast<size_t>(indent)) break;
      rest = std::u32string(static_cast<size_t>(indent), U' ') + rest.substr(next);
    }
  }
  return out;
}

std::vector<TextLine> DetailText(const TenantSample& tenant, const Model& model) {
  Lines lines;
  lines.Say(fmt::format("{} ({}), {}, {}", tenant.name, tenant.id, tenant.owner, tenant.state), Ink::kStrong);
  if (tenant.reservation_pid)
    lines.Say(fmt::format("a reservation for pid {}, which gpumux did not start", *tenant.reservation_pid));
  if (const Text note = NoteOf({&tenant, nullptr, nullptr, tenant.id}); !note.text.empty())
    lines.Say(note.text, note.ink);
  Promise(lines, tenant);
  Memory(lines, tenant);
  if (!tenant.waiting) TimeOnGpu(lines, tenant, model);
  Program(lines, tenant);
  return lines.Take();
}

std::vector<TextLine> HelpText() {
  Lines lines;
  lines.Say("gpumux top: who holds the GPUs, who was promised what, what happens", Ink::kStrong);
  lines.Head("Keys");
  for (const auto& [key, meaning] : std::initializer_list<std::pair<const char*, const char*>>{
           {"arrows, PgUp, PgDn, Home, End", "move"},
           {"Enter", "all of one tenant"},
           {"F3 F4 / \\", "filter: a part of name, id, owner, state, mode or command; Esc: none"},
           {"F6 > .", "choose what to sort by; I: the other way round"},
           {"M P N T", "sort by memory, by GPU held, by name, by start"},
           {"g Tab", "one GPU alone, the next, all"},
           {"F7 m", "change memory"},
           {"F8 t", "change the time limit"},
           {"F9 k", "stop"},
           {"space U", "tag: F7, F8 and F9 are for all tagged; untag all"},
           {"Z", "hold still, go on"},
           {"F1 h ?", "this page"},
           {"F10 q", "leave"}})
    lines.Say(fmt::format("  {:<30} {}", key, meaning));
  lines.Head("Bar of memory");
  lines.Say("  A  in use by tenant A         a  promised to it and not used yet");
  lines.Say("  !  outside gpumux             ?  in use by nobody that NVML lists");
  lines.Say("  =  never promised             ·  can be promised");
  lines.Say("  *  and + as A and a, of tenants beyond 26");
  lines.Head("Who held the GPU");
  lines.Say("  The height is the part of a sample's time for which the tenant held the GPU: known in");
  lines.Say("  mode turns and of --priority latency. Elsewhere nobody can tell, and nothing is drawn.");
  lines.Say("  A dot: not at all. Empty: not known yet.");
  lines.Head("Columns");
  for (const ColumnSpec& column : AllColumns()) {
    if (column.head[0]) lines.Say(fmt::format("  {:<15} {}", column.head, column.meaning));
  }
  lines.Say("");
  lines.Say(
      fmt::format("  {} is unknown, never zero. \"held\" of a GPU adds up what its tenants held.", kUnknown));
  return lines.Take();
}

std::vector<TextLine> SortText(const View& view) {
  std::vector<TextLine> lines;
  lines.push_back({"Sort by (Enter: this; again: the other way round; Esc: leave it)", Ink::kStrong});
  const auto columns = AllColumns();
  for (size_t i = 0; i < columns.size(); ++i) {
    const char* head = columns[i].column == Column::kStarted ? "start"
                       : columns[i].column == Column::kKey   ? "letter"
                                                             : columns[i].head;
    lines.push_back(
        {fmt::format("{} {:<15} {}", i == view.sort_choice() ? ">" : " ", head, columns[i].meaning),
         i == view.sort_choice() ? Ink::kReverse : Ink::kPlain});
  }
  return lines;
}

}  // namespace gpumux::tui
