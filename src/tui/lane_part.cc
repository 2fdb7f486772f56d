// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tui/parts.h"

namespace gpumux::tui {
namespace {

constexpr int kNameWidth = 16, kPercentWidth = 6;

// Eighths of a cell; something is never shown as nothing, nor most as all.
char32_t Height(const Part& held) {
  if (!held) return U' ';
  if (*held <= 0) return U'·';
  const int eighths = std::clamp(static_cast<int>(std::lround(*held * 8)), 1, 8);
  return eighths == 8 ? U'█' : U'▁' + static_cast<char32_t>(eighths - 1);
}

int LaneColumns(int width) { return std::max(1, width - kNameWidth - 4 - kPercentWidth); }

std::string Span(const Model& model, int columns) {
  const auto& spans = model.spans();
  Model::Time sum{};
  const size_t shown = std::min(spans.size(), static_cast<size_t>(columns));
  for (size_t i = spans.size() - shown; i < spans.size(); ++i) sum += spans[i];
  return fmt::format("{:.0f} s", std::chrono::duration<double>(sum).count());
}

}  // namespace

LanePart::LanePart(const Model& model, const View& view, int height) : model_(model) {
  const auto& gpus = model.sample().gpus;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (view.gpu() && *view.gpu() != i) continue;
    const std::string index = gpus[i].label;
    std::vector<Line> lanes;
    std::map<std::string, std::string> unknown;  // who, by why
    for (const TenantSample& tenant : model.sample().tenants) {
      if (!IsOn(tenant, gpus[i])) continue;
      if (const std::string why = WhyNotCounted(tenant); why.empty()) {
        lanes.push_back({&tenant, "", Ink::kPlain});
      } else {
        std::string& who = unknown[why];
        who += (who.empty() ? "" : ",") + std::string(1, model.Of(tenant.id).key);
      }
    }
    if (!lanes.empty()) {
      lines_.push_back({nullptr, fmt::format("Who held GPU {}", index), Ink::kStrong});
      lines_.insert(lines_.end(), lanes.begin(), lanes.end());
    }
    for (const auto& [why, who] : unknown)
      lines_.push_back(
          {nullptr, fmt::format("Who held GPU {} is not known of {}: {}", index, who, why), Ink::kDim});
  }
  const int more = static_cast<int>(lines_.size()) - std::max(height, 0);
  if (more <= 0) return;
  lines_.resize(static_cast<size_t>(std::max(height - 1, 0)));
  if (height > 0)
    lines_.push_back({nullptr, fmt::format("and {} more lines (g: one GPU alone)", more + 1), Ink::kDim});
}

void LanePart::Draw(Screen& screen, int y) const {
  const int columns = LaneColumns(screen.width());
  for (size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    const int at = y + static_cast<int>(i);
    if (!line.tenant) {
      std::string text = line.text;
      if (line.ink == Ink::kStrong)
        text += fmt::format(", last {}, newest on the right, a column a sample", Span(model_, columns));
      screen.Put(0, at, Cut(text, screen.width()), line.ink);
      continue;
    }
    const History& history = model_.Of(line.tenant->id);
    screen.Put(1, at, std::string(1, history.key), Ink::kStrong);
    screen.Put(3, at, Cut(line.tenant->name, kNameWidth - 3));
    int x = screen.Put(kNameWidth, at, "│", Ink::kDim);
    for (int column = 0; column < columns; ++column) {
      const int back = columns - column;  // 1: the newest
      const auto held = static_cast<int>(history.held.size());
      const Part part = back <= held ? history.held[static_cast<size_t>(held - back)] : std::nullopt;
      x = screen.Fill(x, at, 1, Height(part), part && *part > 0 ? Ink::kGood : Ink::kDim);
    }
    x = screen.Put(x, at, "│", Ink::kDim);
    screen.Put(x, at, fmt::format("{:>{}}", Percent(history.Last()), kPercentWidth));
  }
}

}  // namespace gpumux::tui
