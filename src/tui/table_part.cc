// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "tui/parts.h"

namespace gpumux::tui {
namespace {

constexpr int kWidestName = 20;
constexpr int kShortestCommand = 12;
constexpr int kGap = 1;

struct Laid {
  const ColumnSpec* spec;
  int width;
  std::vector<Text> cells;
};

std::string HeadOf(const ColumnSpec& spec, const View& view) {
  std::string head = spec.head;
  if (spec.column == view.sort() && !head.empty()) head += view.descending() ? "▼" : "▲";
  return head;
}

int WidthOf(const std::vector<Laid>& columns) {
  int sum = 0;
  for (const Laid& column : columns)
    sum += kGap + (column.spec->column == Column::kCommand ? kShortestCommand : column.width);
  return sum;
}

// Columns with their widths, without those for which there is no room.
std::vector<Laid> Lay(const std::vector<Row>& rows, int width, const Model& model, const View& view) {
  std::vector<Laid> columns;
  for (const ColumnSpec& spec : AllColumns()) {
    if (spec.column == Column::kStarted) continue;
    Laid laid{&spec, TextWidth(HeadOf(spec, view)), {}};
    for (const Row& row : rows) {
      laid.cells.push_back(CellText(row, spec.column, model));
      laid.width = std::max(laid.width, TextWidth(laid.cells.back().text));
    }
    if (spec.column != Column::kCommand) laid.width = std::min(laid.width, kWidestName);
    columns.push_back(std::move(laid));
  }
  while (WidthOf(columns) > width) {
    const auto first = std::max_element(columns.begin(), columns.end(), [](const Laid& a, const Laid& b) {
      return a.spec->drop < b.spec->drop;
    });
    if (first->spec->drop == 0) break;
    columns.erase(first);
  }
  return columns;
}

void DrawRow(Screen& screen, int y, const std::vector<Laid>& columns, const auto& text_of) {
  int x = kGap;
  for (const Laid& column : columns) {
    const Text text = text_of(column);
    const bool last = &column == &columns.back();
    const int width = last ? screen.width() - x : column.width;
    const std::string cut = Cut(text.text, width);
    const int pad = column.spec->right ? std::max(0, width - TextWidth(cut)) : 0;
    screen.Put(x + pad, y, cut, text.ink);
    x += width + kGap;
  }
}

}  // namespace

void DrawTable(Screen& screen, int y, int height, const Model& model, const View& view) {
  if (height < 1) return;
  const std::vector<Row> rows = view.Rows(model);
  const std::vector<Laid> columns = Lay(rows, screen.width(), model, view);
  DrawRow(screen, y, columns,
          [&](const Laid& column) { return Text{HeadOf(*column.spec, view), Ink::kPlain}; });
  screen.SetInk(0, y, screen.width(), Ink::kReverse);
  if (rows.empty()) {
    const std::string none =
        view.filter().empty() ? "no tenants" : "nothing passes the filter \"" + view.filter() + "\"";
    if (height > 1) screen.Put(1, y + 1, none, Ink::kDim);
    return;
  }
  const int all = static_cast<int>(rows.size());
  // The last line tells what does not fit.
  const int fit = std::max(height - 1, 0), shown = all > fit ? std::max(fit - 1, 0) : all;
  const int first = std::clamp(static_cast<int>(view.selected_row()) - shown / 2, 0, all - shown);
  int line = y + 1;
  const int end = first + shown;
  for (auto at = static_cast<size_t>(first); at < static_cast<size_t>(end); ++at, ++line) {
    DrawRow(screen, line, columns, [&](const Laid& column) { return column.cells[at]; });
    if (view.Tagged(rows[at].id)) screen.Put(0, line, "+", Ink::kStrong);
    if (at == view.selected_row()) screen.SetInk(0, line, screen.width(), Ink::kReverse);
  }
  if (shown < all && fit > 0)
    screen.Put(1, y + fit, fmt::format("{} to {} of {}", first + 1, first + shown, all), Ink::kDim);
}

Text NoteOf(const Row& row) {
  const TenantSample* tenant = row.tenant;
  if (!tenant) return {};
  if (tenant->waiting) {
    const std::string start = tenant->waiting->starts_at.empty()
                                  ? ""
                                  : "; starts by " + tenant->waiting->starts_at + " at the latest";
    return {fmt::format("{} waits (place {}): {}{}", tenant->name, tenant->waiting->position,
                        tenant->waiting->reason, start),
            Ink::kWarning};
  }
  for (const TenantGpuSample& gpu : tenant->gpus) {
    if (gpu.at_risk.value_or(0) > 0)
      return {fmt::format("{} is at risk: up to {} are not covered: {}", tenant->name, BytesText(gpu.at_risk),
                          gpu.at_risk_why),
              Ink::kBad};
  }
  if (tenant->above_limit)
    return {
        fmt::format("{} is above its limit and gets no more: {}", tenant->name, tenant->above_limit_reason),
        Ink::kBad};
  if (tenant->enforced == "not enforced")
    return {fmt::format("{} is not enforced: {}", tenant->name, tenant->enforced_reason), Ink::kBad};
  for (const MemberSample& member : tenant->members) {
    if (!member.waits.empty())
      return {fmt::format("{} (pid {}) waits for its context: {}", tenant->name, member.pid.value_or(0),
                          member.waits),
              Ink::kWarning};
  }
  return {};
}

std::vector<Text> Notes(const std::vector<Row>& rows, size_t selected) {
  std::vector<Text> notes;
  for (size_t i = 0; i < rows.size(); ++i) {
    Text note = NoteOf(rows[i]);
    if (note.text.empty()) continue;
    notes.insert(i == selected ? notes.begin() : notes.end(), std::move(note));
  }
  return notes;
}

}  // namespace gpumux::tui
