// SPDX-License-Identifier: Apache-2.0
#include "tui/columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/units.h"

namespace gpumux::tui {
namespace {

constexpr ColumnSpec kColumns[] = {
    {Column::kStarted, "", false, 0, false, "in the order of their starts; those that wait, by their place"},
    {Column::kKey, "", false, 0, false, "the tenant's letter in the bars above"},
    {Column::kName, "TENANT", false, 0, false, "its name"},
    {Column::kId, "ID", false, 12, false, "its id"},
    {Column::kOwner, "OWNER", false, 5, false, "whose it is"},
    {Column::kState, "STATE", false, 0, false, "waiting, starting, running or stopping"},
    {Column::kGpu, "GPU", false, 4, false, "its GPUs, by index"},
    {Column::kMode, "MODE", false, 9, false, "how its GPU is shared"},
    {Column::kMemory, "USED/LIMIT GiB", true, 0, true, "memory in use, and what it does not get past"},
    {Column::kGuaranteed, "GUAR", true, 3, true, "memory that is promised to it, in GiB"},
    {Column::kPeak, "PEAK", true, 11, true, "the most that was in use, in GiB"},
    {Column::kHeld, "HELD", true, 1, true, "part of the last interval for which it held its GPU"},
    {Column::kLaunches, "LAUNCH/s", true, 7, true, "launches a second (kernels, graphs)"},
    {Column::kWaited, "WAITED", true, 8, true, "how long it waited for its start"},
    {Column::kRefused, "REFUSED", true, 10, true, "allocations that were refused"},
    {Column::kEnforced, "ENFORCED", false, 2, false, "what enforces its memory limit; NO: nothing does"},
    {Column::kCommand, "COMMAND", false, 6, false, "what was started"},
};

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string OrUnknown(const std::string& text) { return text.empty() ? kUnknown : text; }

std::string Count(const std::optional<uint64_t>& count) { return count ? std::to_string(*count) : kUnknown; }

Ink InkOfState(const std::string& state) {
  if (state == "running") return Ink::kGood;
  return state == "waiting" || state == "starting" || state == "stopping" ? Ink::kWarning : Ink::kDim;
}

std::string Gpus(const TenantSample& tenant) {
  std::string out;
  for (const TenantGpuSample& gpu : tenant.gpus) out += (out.empty() ? "" : ",") + gpu.label;
  return OrUnknown(out);
}

std::string Seconds(const std::optional<double>& seconds) {
  if (!seconds || !(*seconds >= 0) || *seconds > 1e9) return kUnknown;
  if (*seconds < 60) return fmt::format("{:.1f}s", *seconds);
  const auto whole = static_cast<uint64_t>(*seconds);
  return whole < 3600 ? fmt::format("{}m{:02}", whole / 60, whole % 60)
                      : fmt::format("{}h{:02}", whole / 3600, whole / 60 % 60);
}

std::string Rate(const std::optional<double>& rate) {
  if (!rate) return kUnknown;
  return *rate >= 1e6   ? fmt::format("{:.1f}M", *rate / 1e6)
         : *rate >= 1e4 ? fmt::format("{:.0f}k", *rate / 1e3)
                        : fmt::format("{:.0f}", *rate);
}

Text Enforced(const TenantSample& tenant) {
  if (tenant.enforced == "not enforced") return {"NO", Ink::kBad};
  if (tenant.enforced.empty()) return {kUnknown, Ink::kDim};
  return {tenant.enforced, Ink::kGood};
}

Text OfStranger(const Row& row, Column column) {
  const StrangerSample& stranger = *row.stranger;
  switch (column) {
    case Column::kKey:
      return {"!", Ink::kWarning};
    case Column::kName:
      return {"(other)", Ink::kDim};
    case Column::kOwner:
      return {OrUnknown(stranger.owner)};
    case Column::kState:
      return {"running"};
    case Column::kGpu:
      return {row.gpu->label};
    case Column::kMemory:
      return {fmt::format("{}/{}", Gib(stranger.used), kUnknown)};
    case Column::kGuaranteed:
      return {"none"};
    case Column::kEnforced:
      return {"NO", Ink::kWarning};
    case Column::kCommand:
      return {fmt::format("unmanaged pid {}{}{}", stranger.pid,
                          stranger.name.empty() ? "" : " " + stranger.name,
                          stranger.container.empty() ? "" : ", " + stranger.container)};
    default:
      return {kUnknown, Ink::kDim};
  }
}

// What a column is sorted by. Monostate: unknown.
using Rank = std::variant<std::monostate, double, std::string>;

template <typename T>
Rank Number(const std::optional<T>& value) {
  return value ? Rank(static_cast<double>(*value)) : Rank();
}

Rank RankOf(const Row& row, Column column, const Model& model) {
  const TenantSample* tenant = row.tenant;
  switch (column) {
    case Column::kMemory:
      return Number(tenant ? tenant->used : row.stranger->used);
    case Column::kGuaranteed:
      return tenant ? Number(tenant->guaranteed) : Rank();
    case Column::kPeak:
      return tenant ? Number(tenant->peak) : Rank();
    case Column::kHeld:
      return tenant ? Number(model.Of(tenant->id).Last()) : Rank();
    case Column::kLaunches:
      return tenant ? Number(model.Of(tenant->id).launches_per_second) : Rank();
    case Column::kWaited:
      return tenant ? Number(tenant->waited_seconds) : Rank();
    case Column::kRefused:
      return tenant ? Number(tenant->refusals) : Rank();
    default:
      break;
  }
  const std::string text = CellText(row, column, model).text;
  return text == kUnknown ? Rank() : Rank(Lower(text));
}

}  // namespace

std::span<const ColumnSpec> AllColumns() { return kColumns; }

const ColumnSpec& SpecOf(Column column) {
  return *std::find_if(std::begin(kColumns), std::end(kColumns),
                       [&](const ColumnSpec& spec) { return spec.column == column; });
}

std::string Gib(const Bytes& bytes) {
  return bytes ? fmt::format("{:.1f}", static_cast<double>(*bytes) / static_cast<double>(kGiB)) : kUnknown;
}

std::string BytesText(const Bytes& bytes) { return bytes ? FormatBytes(*bytes) : kUnknown; }

std::string Percent(const Part& part) { return part ? fmt::format("{:.0f} %", *part * 100) : kUnknown; }

Text CellText(const Row& row, Column column, const Model& model) {
  if (!row.tenant) return OfStranger(row, column);
  const TenantSample& tenant = *row.tenant;
  const History& history = model.Of(tenant.id);
  switch (column) {
    case Column::kStarted:
      return {tenant.started_at};
    case Column::kKey:
      return {std::string(1, tenant.state == "waiting" ? ' ' : history.key), Ink::kStrong};
    case Column::kName:
      return {OrUnknown(tenant.name)};
    case Column::kId:
      return {OrUnknown(tenant.id), Ink::kDim};
    case Column::kOwner:
      return {OrUnknown(tenant.owner)};
    case Column::kState:
      return {OrUnknown(tenant.state), InkOfState(tenant.state)};
    case Column::kGpu:
      return {Gpus(tenant)};
    case Column::kMode:
      return {OrUnknown(tenant.mode)};
    case Column::kMemory:
      return {fmt::format("{}/{}", Gib(tenant.used), Gib(tenant.limit)),
              tenant.above_limit ? Ink::kBad : Ink::kPlain};
    case Column::kGuaranteed:
      if (tenant.at_risk.value_or(0) > 0) return {Gib(tenant.guaranteed) + " AT RISK", Ink::kBad};
      return {tenant.guaranteed == uint64_t{0} ? "none" : Gib(tenant.guaranteed)};
    case Column::kPeak:
      return {Gib(tenant.peak)};
    case Column::kHeld:
      return {Percent(history.Last())};
    case Column::kLaunches:
      return {Rate(history.launches_per_second)};
    case Column::kWaited:
      return {Seconds(tenant.waited_seconds)};
    case Column::kRefused:
      return {Count(tenant.refusals), tenant.refusals.value_or(0) > 0 ? Ink::kWarning : Ink::kPlain};
    case Column::kEnforced:
      return Enforced(tenant);
    case Column::kCommand:
      return {tenant.command};
  }
  return {};
}

std::vector<Row> AllRows(const Model& model) {
  std::vector<Row> rows;
  for (const TenantSample& tenant : model.sample().tenants)
    rows.push_back({&tenant, nullptr, nullptr, tenant.id});
  for (const GpuSample& gpu : model.sample().gpus) {
    for (const StrangerSample& stranger : gpu.strangers)
      rows.push_back({nullptr, &stranger, &gpu, fmt::format("pid {} on {}", stranger.pid, gpu.uuid)});
  }
  return rows;
}

bool Passes(const Row& row, const std::string& filter) {
  const std::string wanted = Lower(filter);
  const auto has = [&](const std::string& text) { return Lower(text).find(wanted) != std::string::npos; };
  if (wanted.empty()) return true;
  if (const TenantSample* tenant = row.tenant)
    return has(tenant->name) || has(tenant->id) || has(tenant->owner) || has(tenant->state) ||
           has(tenant->mode) || has(tenant->command);
  return has(row.stranger->name) || has(row.stranger->owner) || has(row.stranger->container) ||
         has(std::to_string(row.stranger->pid));
}

void Sort(std::vector<Row>& rows, Column column, bool descending, const Model& model) {
  if (column == Column::kStarted) {
    if (descending) std::reverse(rows.begin(), rows.end());
    return;
  }
  std::vector<std::pair<Rank, Row>> ranked;
  for (Row& row : rows) {
    Rank rank = RankOf(row, column, model);
    ranked.emplace_back(std::move(rank), std::move(row));
  }
  std::stable_sort(ranked.begin(), ranked.end(), [&](const auto& a, const auto& b) {
    const bool a_unknown = a.first.index() == 0, b_unknown = b.first.index() == 0;
    if (a_unknown || b_unknown) return !a_unknown && b_unknown;
    return descending ? b.first < a.first : a.first < b.first;
  });
  rows.clear();
  for (auto& [rank, row] : ranked) rows.push_back(std::move(row));
}

}  // namespace gpumux::tui
