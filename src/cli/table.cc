// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <algorithm>

namespace gpumux::cli {
namespace {

constexpr size_t kGap = 2;

const char* Escape(Table::Style style) {
  switch (style) {
    case Table::Style::kGood:
      return "\x1b[32m";
    case Table::Style::kWarning:
      return "\x1b[33m";
    case Table::Style::kBad:
      return "\x1b[31m";
    case Table::Style::kDim:
      return "\x1b[2m";
    case Table::Style::kPlain:
      break;
  }
  return "";
}

}  // namespace

void Table::AddColumn(std::string header, Align align, int drop) {
  columns_.push_back({std::move(header), align, drop});
}

void Table::AddRow(std::vector<Cell> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render(const Terminal& terminal) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = DisplayWidth(columns_[c].header);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[c].text));
    widths.push_back(width);
  }
  std::vector<size_t> shown;
  for (size_t c = 0; c < columns_.size(); ++c) shown.push_back(c);
  const auto total = [&] {
    size_t sum = 0;
    for (const size_t c : shown) sum += widths[c] + kGap;
    return shown.empty() ? 0 : sum - kGap;
  };
  const size_t limit = terminal.width > 0 ? static_cast<size_t>(terminal.width) : SIZE_MAX;
  while (total() > limit) {
    const auto worst = std::max_element(
        shown.begin(), shown.end(), [&](size_t a, size_t b) { return columns_[a].drop < columns_[b].drop; });
    if (worst == shown.end() || columns_[*worst].drop == 0) break;
    shown.erase(worst);
  }

  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string text;
    size_t used = 0;
    size_t pending = 0;  // spaces that are written only if something follows
    for (size_t i = 0; i < shown.size(); ++i) {
      const size_t c = shown[i];
      Cell cell = cell_of(c);
      const bool last = i + 1 == shown.size();
      if (last && limit != SIZE_MAX && used + DisplayWidth(cell.text) > limit) {
        cell.text = Plain(cell.text, limit > used ? limit - used : 0);
      }
      const size_t width = DisplayWidth(cell.text);
      const size_t pad = widths[c] > width ? widths[c] - width : 0;
      if (columns_[c].align == Align::kRight) pending += pad;
      if (!cell.text.empty()) {
        text.append(pending, ' ');
        pending = 0;
        const bool styled = terminal.color && cell.style != Style::kPlain;
        text += styled ? Escape(cell.style) + cell.text + "\x1b[0m" : cell.text;
      }
      if (columns_[c].align == Align::kLeft) pending += pad;
      pending += kGap;
      used += widths[c] + kGap;
    }
    out += text + "\n";
  };
  line([&](size_t c) { return Cell{columns_[c].header}; });
  for (const auto& row : rows_) line([&](size_t c) { return row[c]; });
  return out;
}

}  // namespace gpumux::cli
