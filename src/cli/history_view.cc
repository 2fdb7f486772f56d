// SPDX-License-Identifier: Apache-2.0
#include "cli/history_view.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/envelope.h"
#include "cli/table.h"

namespace gpumux::cli {

namespace {

using Json = nlohmann::json;

constexpr const char* kUnknown = "–";

std::string Bytes(const Json& value) {
  return value.is_number_unsigned() ? FormatBytes(value.get<uint64_t>()) : kUnknown;
}

std::string Duration(const Json& seconds) {
  if (!seconds.is_number()) return kUnknown;
  return FormatDuration(std::chrono::nanoseconds(static_cast<int64_t>(1e9 * seconds.get<double>())));
}

std::string LocalTime(const Json& milliseconds) {
  if (!milliseconds.is_number_integer()) return kUnknown;
  return fmt::format("{:%Y-%m-%d %H:%M:%S}",
                     fmt::localtime(static_cast<time_t>(milliseconds.get<int64_t>() / 1000)));
}

uint64_t CountAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

uint64_t RefusedOf(const Json& tenant) {
  const Json& refusals = At(tenant, "refusals");
  return CountAt(refusals, "own_limit") + CountAt(refusals, "device_full") + CountAt(refusals, "own_part");
}

Table::Style StyleOf(const std::string& outcome) {
  if (outcome == "completed" || outcome == "released") return Table::Style::kGood;
  if (outcome == "stopped" || outcome == "time-limit" || outcome == "not-started")
    return Table::Style::kWarning;
  return outcome == "unknown" ? Table::Style::kDim : Table::Style::kBad;
}

// What the outcome does not say.
std::string Detail(const Json& tenant) {
  const Json& ended = At(tenant, "ended");
  const std::string outcome = TextAt(tenant, "outcome");
  if (outcome == "completed") return "";
  const Json& code = At(ended, "exit_code");
  if ((outcome == "failed" || outcome == "out-of-memory") && code.is_number_integer())
    return fmt::format("exit code {}", code.get<int>());
  return TextAt(ended, "why", 80);
}

std::string TotalsLine(const Json& totals) {
  std::string line =
      fmt::format("{} tenant{}", CountAt(totals, "tenants"), CountAt(totals, "tenants") == 1 ? "" : "s");
  const Json& outcomes = At(totals, "outcomes");
  if (outcomes.is_object()) {
    const char* separator = ": ";
    for (const auto& [name, count] : outcomes.items()) {
      line += fmt::format("{}{} {}", std::exchange(separator, ", "), CountAt(outcomes, name.c_str()),
                          TextAt(Json{{"name", name}}, "name", 40));
    }
  }
  if (CountAt(totals, "tenants") == 0) return line + "\n";
  return line + fmt::format("; ran {} (median), {} (95 %); waited {}, {}\n",
                            Duration(At(totals, "ran_median_seconds")),
                            Duration(At(totals, "ran_p95_seconds")),
                            Duration(At(totals, "waited_median_seconds")),
                            Duration(At(totals, "waited_p95_seconds")));
}

std::string Quoted(const std::string& text) {
  // A spreadsheet takes a cell that begins like this for a formula.
  std::string out = text.find_first_of("=+-@") == 0 ? "'" : "";
  out += text;
  if (out.find_first_of(",\"\r\n") == std::string::npos) return out;
  std::string quoted = "\"";
  for (const char c : out) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// As it is in JSON; nothing where it is unknown.
std::string Cell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return Quoted(value.get<std::string>());
  return value.is_structured() ? Quoted(value.dump(-1, ' ', false, Json::error_handler_t::replace))
                               : value.dump();
}

}  // namespace

std::string RenderHistory(const Json& tenants, const Json& totals, const Terminal& terminal) {
  Table table;
  table.AddColumn("TENANT");
  table.AddColumn("OWNER", Table::Align::kLeft, 3);
  table.AddColumn("STARTED", Table::Align::kLeft, 2);
  table.AddColumn("RAN", Table::Align::kRight);
  table.AddColumn("WAITED", Table::Align::kRight, 4);
  table.AddColumn("MODE", Table::Align::kLeft, 5);
  table.AddColumn("PEAK", Table::Align::kRight, 1);
  table.AddColumn("LIMIT", Table::Align::kRight, 6);
  table.AddColumn("REFUSED", Table::Align::kRight, 7);
  table.AddColumn("OUTCOME");
  table.AddColumn("");
  for (auto it = tenants.rbegin(); it != tenants.rend(); ++it) {
    const std::string outcome = TextAt(*it, "outcome", 30);
    const uint64_t refused = RefusedOf(*it);
    table.AddRow(
        {{TextAt(*it, "name", 40)},
         {TextAt(*it, "owner", 32)},
         {LocalTime(At(*it, "started_ms"))},
         {Duration(At(At(*it, "ended"), "ran_seconds"))},
         {Duration(At(*it, "waited_seconds"))},
         {TextAt(*it, "mode", 12)},
         {Bytes(At(*it, "mem_peak_bytes"))},
         {Bytes(At(*it, "mem_limit_bytes"))},
         {refused ? fmt::format("{}", refused) : "0", refused ? Table::Style::kWarning : Table::Style::kDim},
         {outcome, StyleOf(outcome)},
         {Detail(*it), Table::Style::kDim}});
  }
  return (table.empty() ? "" : table.Render(terminal)) + TotalsLine(totals);
}

std::string HistoryCsv(const Json& tenants) {
  std::string out =
      "id,name,owner,labels,mode,priority,gpus,started_at,ended_at,waited_seconds,ran_seconds,outcome,why,"
      "exit_code,signal,"
      "mem_guaranteed_bytes,mem_limit_bytes,mem_peak_bytes,mem_mean_bytes,refused_own_limit,refused_device_"
      "full,"
      "refused_own_part,launches,idle_total_seconds,gpu_seconds,turns,turns_waited_seconds,gate_closed_"
      "seconds\r\n";
  for (const Json& tenant : tenants) {
    const Json &ended = At(tenant, "ended"), &refusals = At(tenant, "refusals"), &turns = At(tenant, "turns");
    std::string gpus;
    for (const Json& gpu : At(tenant, "gpus")) gpus += (gpus.empty() ? "" : " ") + TextAt(gpu, "uuid", 64);
    out += fmt::format("{}\r\n",
                       fmt::join(std::vector<std::string>{Cell(At(tenant, "id")),
                                                          Cell(At(tenant, "name")),
                                                          Cell(At(tenant, "owner")),
                                                          Cell(At(tenant, "labels")),
                                                          Cell(At(tenant, "mode")),
                                                          Cell(At(tenant, "priority")),
                                                          Quoted(gpus),
                                                          Cell(At(tenant, "started_at")),
                                                          Cell(At(ended, "ended_at")),
                                                          Cell(At(tenant, "waited_seconds")),
                                                          Cell(At(ended, "ran_seconds")),
                                                          Cell(At(tenant, "outcome")),
                                                          Cell(At(ended, "why")),
                                                          Cell(At(ended, "exit_code")),
                                                          Cell(At(ended, "signal")),
                                                          Cell(At(tenant, "mem_guaranteed_bytes")),
                                                          Cell(At(tenant, "mem_limit_bytes")),
                                                          Cell(At(tenant, "mem_peak_bytes")),
                                                          Cell(At(tenant, "mem_mean_bytes")),
                                                          Cell(At(refusals, "own_limit")),
                                                          Cell(At(refusals, "device_full")),
                                                          Cell(At(refusals, "own_part")),
                                                          Cell(At(tenant, "launches")),
                                                          Cell(At(tenant, "idle_total_seconds")),
                                                          Cell(At(turns, "gpu_seconds")),
                                                          Cell(At(turns, "turns")),
                                                          Cell(At(turns, "waited_seconds")),
                                                          Cell(At(At(tenant, "gate"), "closed_seconds"))},
                                 ","));
  }
  return out;
}

std::string RenderGpuHistory(const Json& stretches, const Terminal& terminal) {
  Table table;
  table.AddColumn("FROM");
  table.AddColumn("GPU", Table::Align::kLeft, 4);
  table.AddColumn("MODE", Table::Align::kLeft, 2);
  table.AddColumn("TENANTS", Table::Align::kRight);
  table.AddColumn("USED, MEAN", Table::Align::kRight, 3);
  table.AddColumn("MOST", Table::Align::kRight);
  table.AddColumn("GUARANTEED", Table::Align::kRight);
  table.AddColumn("PROMISABLE, LEAST", Table::Align::kRight, 1);
  table.AddColumn("UNMANAGED", Table::Align::kRight);
  table.AddColumn("UNEXPLAINED", Table::Align::kRight, 5);
  for (const Json& stretch : stretches) {
    std::string modes;
    for (const Json& mode : At(stretch, "modes"))
      if (mode.is_string()) modes += (modes.empty() ? "" : ", ") + TextAt(Json{{"mode", mode}}, "mode", 20);
    table.AddRow({{LocalTime(At(stretch, "from_ms"))},
                  {TextAt(stretch, "uuid", 12)},
                  {modes.empty() ? kUnknown : modes},
                  {fmt::format("{}", CountAt(stretch, "tenants"))},
                  {Bytes(At(stretch, "mem_used_mean_bytes"))},
                  {Bytes(At(stretch, "mem_used_bytes"))},
                  {Bytes(At(stretch, "mem_guaranteed_bytes"))},
                  {Bytes(At(stretch, "mem_promisable_bytes"))},
                  {Bytes(At(stretch, "mem_unmanaged_bytes"))},
                  {Bytes(At(stretch, "mem_unexplained_bytes"))}});
  }
  return table.empty() ? "nothing is known of that time\n" : table.Render(terminal);
}

std::string GpuHistoryCsv(const Json& stretches) {
  constexpr const char* kColumns[] = {"from_ms",
                                      "uuid",
                                      "modes",
                                      "samples",
                                      "tenants",
                                      "mem_guaranteed_bytes",
                                      "mem_used_bytes",
                                      "mem_used_mean_bytes",
                                      "mem_promisable_bytes",
                                      "mem_device_used_bytes",
                                      "mem_unmanaged_bytes",
                                      "mem_unexplained_bytes"};
  std::string out = fmt::format("{}\r\n", fmt::join(kColumns, ","));
  for (const Json& stretch : stretches) {
    std::vector<std::string> cells;
    for (const char* column : kColumns) cells.push_back(Cell(At(stretch, column)));
    out += fmt::format("{}\r\n", fmt::join(cells, ","));
  }
  return out;
}

}  // namespace gpumux::cli
