// SPDX-License-Identifier: Apache-2.0
#include "cli/tenant_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/units.h"
#include "cli/envelope.h"
#include "cli/refusal_line.h"
#include "cli/table.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Style = Table::Style;
using Align = Table::Align;

constexpr const char* kUnknown = "–";
constexpr std::string_view kSoftwareGpu = " (software GPU, simulated)";
constexpr int kWideEnough = 100;  // columns

std::optional<uint64_t> NumberAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

std::string Memory(const std::optional<uint64_t>& bytes) { return bytes ? FormatBytes(*bytes) : kUnknown; }

// In GiB without the unit, for cells that hold several figures.
std::string Gib(const std::optional<uint64_t>& bytes) {
  return bytes ? fmt::format("{:.1f}", static_cast<double>(*bytes) / static_cast<double>(kGiB)) : kUnknown;
}

std::string OrUnknown(const std::string& text) { return text.empty() ? kUnknown : text; }

const Json& ListAt(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const Json& value = At(object, key);
  return value.is_array() ? value : kEmpty;
}

Result<Json> Data(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  const Json& data = At(json, "data");
  if (!data.is_object())
    return Fail(Code::kInternal, "the daemon's answer is not understood", "it may be of another version");
  return data;
}

bool Simulated(const std::string& text) { return At(Json::parse(text, nullptr, false), "simulated") == true; }

Style StateStyle(const std::string& state) {
  if (state == "running") return Style::kGood;
  if (state == "waiting" || state == "starting" || state == "stopping") return Style::kWarning;
  return Style::kDim;
}

// "0", "0,2" or "–".
std::string GpuIndices(const Json& tenant) {
  std::string out;
  for (const Json& gpu : ListAt(tenant, "gpus")) {
    out += (out.empty() ? "" : ",") + GpuLabel(gpu);
  }
  return OrUnknown(out);
}

// How the memory limit is enforced, shortly: "guard" or "NO" or "–" (not known).
Table::Cell EnforcedCell(const Json& tenant) {
  const Json& memory = At(At(tenant, "enforced"), "memory");
  if (memory == "not enforced") return {"NO", Style::kBad};
  if (memory.is_string()) return {TextAt(At(tenant, "enforced"), "memory", 24), Style::kGood};
  return {kUnknown, Style::kDim};
}

// How long it has held memory without launching a kernel; "no": it works.
Table::Cell IdleCell(const Json& tenant) {
  constexpr double kWorks = 3;  // seconds: the daemon looks once a second
  const Json& idle = At(tenant, "idle_seconds");
  if (!idle.is_number() || idle.get<double>() < 0) return {kUnknown, Style::kDim};
  if (idle.get<double>() < kWorks) return {"no"};
  const auto seconds = static_cast<int64_t>(std::min(idle.get<double>(), 1e9));
  return {FormatDuration(std::chrono::seconds(seconds)), Style::kWarning};
}

// "812" or "812,813 and 3 more".
std::string Pids(const Json& list) {
  constexpr size_t kShown = 8;
  std::string out;
  size_t count = 0;
  for (const Json& pid : list) {
    if (!pid.is_number_integer() || ++count > kShown) continue;
    out += (out.empty() ? "" : ",") + std::to_string(pid.get<int64_t>());
  }
  return count > kShown ? fmt::format("{} and {} more", out, count - kShown) : out;
}

size_t CountTenantsOn(const Json& data, const std::string& uuid) {
  size_t count = 0;
  for (const Json& tenant : ListAt(data, "tenants")) {
    for (const Json& gpu : ListAt(tenant, "gpus")) count += TextAt(gpu, "uuid") == uuid ? 1 : 0;
  }
  return count;
}

std::string GpuTable(const Json& data, bool simulated, const Terminal& terminal) {
  Table table;
  table.AddColumn("GPU", Align::kRight);
  table.AddColumn("NAME");
  table.AddColumn("MODE");
  table.AddColumn("MEM used/guaranteed/total", Align::kRight);
  table.AddColumn("PROMISABLE", Align::kRight, 1);
  table.AddColumn("UNMANAGED", Align::kRight, 2);
  table.AddColumn("TENANTS", Align::kRight, 3);
  const bool tenants_known = At(data, "tenants").is_array();
  for (const Json& gpu : ListAt(data, "gpus")) {
    const auto unmanaged = NumberAt(gpu, "mem_unmanaged_bytes");
    std::string name = OrUnknown(TextAt(gpu, "name", 40));
    // So long a name would cost a narrow terminal the column of what can be promised.
    const bool narrow = terminal.width > 0 && terminal.width < kWideEnough;
    if (const size_t at = name.find(kSoftwareGpu); simulated && narrow && at != std::string::npos)
      name.resize(at);
    // The software GPU's own name says it; one with a real GPU's name must not pass for it.
    const bool mark = simulated && name.find("simulated") == std::string::npos;
    table.AddRow(
        {{GpuLabel(gpu)},
         {mark ? name + " SIM" : name},
         {OrUnknown(TextAt(gpu, "mode"))},
         {fmt::format("{} / {} / {} GiB", Gib(NumberAt(gpu, "mem_used_bytes")),
                      Gib(NumberAt(gpu, "mem_guaranteed_bytes")), Gib(NumberAt(gpu, "mem_total_bytes")))},
         {Memory(NumberAt(gpu, "mem_promisable_bytes"))},
         {Memory(unmanaged), unmanaged.value_or(0) > 0 ? Style::kWarning : Style::kPlain},
         {tenants_known ? std::to_string(CountTenantsOn(data, TextAt(gpu, "uuid"))) : kUnknown}});
  }
  return table.Render(terminal);
}

Table::Cell MemoryOfLimit(const Json& tenant) {
  const auto used = NumberAt(tenant, "mem_used_bytes");
  const auto limit = NumberAt(tenant, "mem_limit_bytes");
  const bool above = At(tenant, "above_limit") == true;
  return {fmt::format("{} / {} GiB", Gib(used), Gib(limit)), above ? Style::kBad : Style::kPlain};
}

Table::Cell Guarantee(const Json& tenant) {
  const auto bytes = NumberAt(tenant, "mem_guaranteed_bytes");
  if (bytes && *bytes == 0) return {"none"};
  const bool at_risk = NumberAt(tenant, "mem_at_risk_bytes").value_or(0) > 0;
  return at_risk ? Table::Cell{Memory(bytes) + " AT RISK", Style::kBad} : Table::Cell{Memory(bytes)};
}

// A row for each of the largest processes without a lease; false if the answer
// knows no more than their pids.
bool AddStrangers(Table& table, const Json& gpu) {
  constexpr size_t kShown = 8;
  std::vector<const Json*> strangers;
  for (const Json& stranger : ListAt(gpu, "strangers")) strangers.push_back(&stranger);
  std::stable_sort(strangers.begin(), strangers.end(), [](const Json* a, const Json* b) {
    return NumberAt(*a, "mem_used_bytes").value_or(0) > NumberAt(*b, "mem_used_bytes").value_or(0);
  });
  const auto row = [&](const std::string& owner, const std::string& used, const std::string& command) {
    table.AddRow({{"(other)", Style::kDim},
                  {kUnknown, Style::kDim},
                  {OrUnknown(owner)},
                  {"running"},
                  {GpuLabel(gpu)},
                  {fmt::format("{} / {} GiB", used, kUnknown)},
                  {"none"},
                  {kUnknown},
                  {kUnknown},
                  {"NO", Style::kWarning},
                  {command}});
  };
  uint64_t rest = 0;
  for (size_t i = 0; i < strangers.size(); ++i) {
    const Json& stranger = *strangers[i];
    const auto used = NumberAt(stranger, "mem_used_bytes");
    if (i >= kShown) {
      rest += used.value_or(0);
      continue;
    }
    const std::string name = TextAt(stranger, "name", 20), container = TextAt(stranger, "container", 80);
    row(TextAt(stranger, "owner", 16), Gib(used),
        fmt::format("unmanaged pid {}{}{}", NumberAt(stranger, "pid").value_or(0),
                    name.empty() ? "" : " " + name, container.empty() ? "" : ", " + container));
  }
  if (strangers.size() > kShown)
    row("", Gib(rest), fmt::format("{} more unmanaged processes", strangers.size() - kShown));
  return !strangers.empty();
}

std::string TenantTable(const Json& data, const Terminal& terminal) {
  Table table;
  table.AddColumn("TENANT");
  table.AddColumn("ID", Align::kLeft, 2);
  table.AddColumn("OWNER", Align::kLeft, 4);
  table.AddColumn("STATE");
  table.AddColumn("GPU", Align::kLeft, 3);
  table.AddColumn("MEM use/limit", Align::kRight);
  table.AddColumn("GUARANTEED", Align::kRight);
  table.AddColumn("PEAK", Align::kRight, 6);
  table.AddColumn("IDLE", Align::kRight, 5);
  table.AddColumn("ENFORCED", Align::kLeft, 1);
  table.AddColumn("COMMAND", Align::kLeft, 7);
  for (const Json& tenant : ListAt(data, "tenants")) {
    const std::string state = TextAt(tenant, "state");
    table.AddRow({{OrUnknown(TextAt(tenant, "name", 24))},
                  {OrUnknown(TextAt(tenant, "id", 20)), Style::kDim},
                  {OrUnknown(TextAt(tenant, "owner", 16))},
                  {OrUnknown(state), StateStyle(state)},
                  {GpuIndices(tenant)},
                  MemoryOfLimit(tenant),
                  Guarantee(tenant),
                  {Memory(NumberAt(tenant, "mem_peak_bytes"))},
                  IdleCell(tenant),
                  EnforcedCell(tenant),
                  {TextAt(tenant, "command", 60)}});
  }
  for (const Json& gpu : ListAt(data, "gpus")) {
    const Json& pids = ListAt(gpu, "unmanaged_pids");
    if (pids.empty() || AddStrangers(table, gpu)) continue;
    table.AddRow({{"(other)", Style::kDim},
                  {kUnknown, Style::kDim},
                  {kUnknown},
                  {"running"},
                  {GpuLabel(gpu)},
                  {fmt::format("{} / {} GiB", Gib(NumberAt(gpu, "mem_unmanaged_bytes")), kUnknown)},
                  {"none"},
                  {kUnknown},
                  {kUnknown},
                  {"NO", Style::kWarning},
                  {Plain("unmanaged pid " + Pids(pids), 60)}});
  }
  return table.empty() ? "no tenants\n" : table.Render(terminal);
}

// "; starts by 2026-11-30T12:00:00Z at the latest"
std::string StartOf(const Json& waiting) {
  const std::string at = TextAt(waiting, "estimated_start_at", 30);
  return at.empty() ? "" : fmt::format("; starts by {} at the latest", at);
}

// What a table cannot hold: why a tenant waits, whose a GPU is.
std::string Notes(const Json& data) {
  std::string out;
  for (const Json& tenant : ListAt(data, "tenants")) {
    const Json& waiting = At(tenant, "waiting");
    if (waiting.is_object()) {
      out += fmt::format("{} waits (place {}): {}{}\n", TextAt(tenant, "name", 24),
                         NumberAt(waiting, "position").value_or(0), TextAt(waiting, "reason", 300),
                         StartOf(waiting));
    }
    if (At(tenant, "above_limit") == true) {
      out += fmt::format("{} is above its limit and gets no more: {}\n", TextAt(tenant, "name", 24),
                         OrUnknown(TextAt(tenant, "above_limit_reason", 300)));
    }
    if (const Json& left = ListAt(tenant, "left_behind_pids"); !left.empty()) {
      out +=
          fmt::format("{} has ended, but pid {}, left in the background, keeps its promise; gpumux stop {}\n",
                      TextAt(tenant, "name", 24), Pids(left), TextAt(tenant, "id", 20));
    }
    for (const Json& gpu : ListAt(tenant, "gpus")) {
      const uint64_t at_risk = NumberAt(gpu, "mem_at_risk_bytes").value_or(0);
      if (at_risk == 0) continue;
      out += fmt::format("{} is at risk: up to {} of its promise are not covered on GPU {}: {}\n",
                         TextAt(tenant, "name", 24), FormatBytes(at_risk), GpuLabel(gpu),
                         TextAt(gpu, "at_risk_why", 300));
    }
    const std::string why = TextAt(At(tenant, "enforced"), "memory_reason", 300);
    if (At(At(tenant, "enforced"), "memory") == "not enforced") {
      out += fmt::format("{} is not enforced: {}\n", TextAt(tenant, "name", 24), OrUnknown(why));
    }
  }
  for (const Json& gpu : ListAt(data, "gpus")) {
    const Json& owner = At(gpu, "owner");
    if (owner.is_object()) {
      out += fmt::format("GPU {} is managed by the daemon of uid {} (pid {})\n", GpuLabel(gpu),
                         NumberAt(owner, "uid").value_or(0), NumberAt(owner, "pid").value_or(0));
    } else if (NumberAt(gpu, "mem_promisable_bytes") == 0 &&
               At(gpu, "mem_promisable_bytes_reason").is_string()) {
      const std::string remedy = TextAt(gpu, "remedy", 300);
      out +=
          fmt::format("GPU {} takes no new tenants: {}{}\n", GpuLabel(gpu),
                      TextAt(gpu, "mem_promisable_bytes_reason", 300), remedy.empty() ? "" : "; " + remedy);
    }
  }
  return out;
}

// Which processes wait for a context, and why; a line each.
std::string WaitingProcesses(const Json& data) {
  std::string out;
  for (const Json& tenant : ListAt(data, "tenants")) {
    for (const Json& member : ListAt(tenant, "members")) {
      const std::string why = TextAt(member, "waits", 300);
      if (why.empty()) continue;
      out += fmt::format("{} (pid {}) waits for its context: {}\n", TextAt(tenant, "name", 24),
                         NumberAt(member, "pid").value_or(0), why);
    }
  }
  return out;
}

// Who got no memory, and why; a line each.
std::string Refused(const Json& data) {
  std::string out;
  for (const Json& tenant : ListAt(data, "tenants")) {
    if (const std::string why = RefusalReason(tenant, At(data, "gpus")); !why.empty())
      out += fmt::format("{} ({}): {}: {}\n", TextAt(tenant, "name", 24), TextAt(tenant, "id", 20),
                         RefusalCount(At(tenant, "refusals")), why);
  }
  return out;
}

}  // namespace

Result<std::string> RenderStatus(const std::string& json, const Terminal& terminal) {
  const auto data = Data(json);
  if (!data) return tl::unexpected(data.error());
  std::string out = ListAt(*data, "gpus").empty() ? "no GPUs\n" : GpuTable(*data, Simulated(json), terminal);
  out += TenantTable(*data, terminal);
  out += Notes(*data);
  out += WaitingProcesses(*data);
  return out;
}

Result<std::string> RenderProcesses(const std::string& json, const Terminal& terminal) {
  const auto data = Data(json);
  if (!data) return tl::unexpected(data.error());
  Table table;
  table.AddColumn("TENANT");
  table.AddColumn("ID", Align::kLeft, 2);
  table.AddColumn("OWNER", Align::kLeft, 3);
  table.AddColumn("STATE");
  table.AddColumn("PID", Align::kRight);
  table.AddColumn("PROCESS");
  table.AddColumn("GPU", Align::kRight);
  table.AddColumn("MEM", Align::kRight);
  table.AddColumn("CONTEXTS", Align::kRight, 4);
  table.AddColumn("IDLE", Align::kRight, 5);
  table.AddColumn("GUARD", Align::kLeft, 1);
  for (const Json& tenant : ListAt(*data, "tenants")) {
    const std::string state = TextAt(tenant, "state");
    const auto row = [&](std::string pid, std::string process, std::string gpu, std::string memory,
                         std::string contexts, Table::Cell guard) {
      table.AddRow({{OrUnknown(TextAt(tenant, "name", 24))},
                    {OrUnknown(TextAt(tenant, "id", 20)), Style::kDim},
                    {OrUnknown(TextAt(tenant, "owner", 16))},
                    {OrUnknown(state), StateStyle(state)},
                    {std::move(pid)},
                    {std::move(process)},
                    {std::move(gpu)},
                    {std::move(memory)},
                    {std::move(contexts)},
                    IdleCell(tenant),
                    std::move(guard)});
    };
    const Json& members = ListAt(tenant, "members");
    if (members.empty()) {
      // Nothing on a GPU: the program itself, if it has started, or what it left behind.
      const Json& left = ListAt(tenant, "left_behind_pids");
      for (const Json& pid : left) {
        if (pid.is_number_integer())
          row(std::to_string(pid.get<int64_t>()), "(in the background)", kUnknown, kUnknown, kUnknown,
              {kUnknown});
      }
      if (!left.empty()) continue;
      const auto pid = NumberAt(tenant, "pid");
      row(pid ? std::to_string(*pid) : kUnknown, Plain(TextAt(tenant, "command"), 30), kUnknown, kUnknown,
          kUnknown, {kUnknown});
      continue;
    }
    for (const Json& member : members) {
      const auto pid = NumberAt(member, "pid");
      const std::string guard = TextAt(member, "guard");
      const Table::Cell guard_cell{OrUnknown(guard), guard == "in force" ? Style::kGood : Style::kBad};
      const Json& gpus = ListAt(member, "gpus");
      const std::string pid_text = pid ? std::to_string(*pid) : kUnknown;
      if (gpus.empty())
        row(pid_text, OrUnknown(TextAt(member, "name", 30)), kUnknown, kUnknown, kUnknown, guard_cell);
      for (const Json& gpu : gpus) {
        std::string label = kUnknown;
        for (const Json& of_tenant : ListAt(tenant, "gpus")) {
          if (TextAt(of_tenant, "uuid") == TextAt(gpu, "uuid")) label = GpuLabel(of_tenant);
        }
        const auto committed = NumberAt(gpu, "mem_committed_bytes");
        const auto overhead = NumberAt(gpu, "mem_overhead_bytes");
        const auto contexts = NumberAt(gpu, "contexts");
        row(pid_text, OrUnknown(TextAt(member, "name", 30)), label,
            committed && overhead ? FormatBytes(*committed + *overhead) : kUnknown,
            contexts ? std::to_string(*contexts) : kUnknown, guard_cell);
      }
    }
  }
  return table.empty() ? std::string("no tenants\n")
                       : table.Render(terminal) + WaitingProcesses(*data) + Refused(*data);
}

}  // namespace gpumux::cli
