// SPDX-License-Identifier: Apache-2.0
#include "tui/draw.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "tui/parts.h"

namespace gpumux::tui {
namespace {

constexpr int kNarrowest = 40, kLowest = 8, kLowestWithLanes = 16;

// Where the parts of the first page are: from the top GPUs, lanes, table, and from
// the bottom keys, events, note.
struct Layout {
  Layout(const Model& model, const View& view, int height)
      : gpus(model, view, std::max(1, height / 3)),
        lanes(model, view, height < kLowestWithLanes ? 0 : height / 4) {
    y_gpus = model.lost().empty() ? 1 : 2;
    y_lanes = y_gpus + gpus.height();
    y_table = y_lanes + lanes.height();
    events = height >= 48 ? 6 : height >= 36 ? 4 : height >= 24 ? 2 : 1;
    y_events = height - 1 - events;
    y_note = y_events - 1;
    table_height = y_note - y_table;
  }
  GpuPart gpus;
  LanePart lanes;
  int y_gpus, y_lanes, y_table, table_height, y_note, y_events, events;
};

std::string Counts(const Sample& sample) {
  size_t waiting = 0;
  for (const TenantSample& tenant : sample.tenants) waiting += tenant.state == "waiting" ? 1 : 0;
  const size_t there = sample.tenants.size() - waiting;
  return fmt::format("{} tenant{}, {} waiting", there, there == 1 ? "" : "s", waiting);
}

void DrawTitle(Screen& screen, const Model& model, const View& view, const Look& look) {
  const Sample& sample = model.sample();
  int x = screen.Put(0, 0, "gpumux top", Ink::kStrong);
  const auto add = [&](const std::string& text, Ink ink = Ink::kPlain) {
    if (!text.empty() && x + 2 + TextWidth(text) <= screen.width()) x = screen.Put(x + 2, 0, text, ink);
  };
  if (view.paused()) add("HELD STILL (Z)", Ink::kWarning);
  add(look.time);
  add(Counts(sample));
  if (view.readonly()) add("read-only");
  if (sample.simulated) add("SIMULATED", Ink::kWarning);
  if (view.gpu()) add("one GPU alone (g)", Ink::kWarning);
  if (!view.filter().empty()) add("filter: " + view.filter(), Ink::kWarning);
  add(look.host);
  add("every " + look.every);
  if (!sample.driver_version.empty()) add("driver " + sample.driver_version);
}

void DrawLastLine(Screen& screen, const View& view, const Look& look) {
  const int y = screen.height() - 1;
  const std::string question = view.Question();
  if (!question.empty()) {
    // Of a long one the end counts: what is typed.
    const int width = screen.width() - 1;
    const std::u32string shown = Shown(question);
    size_t from = 0;
    int all = TextWidth(question);
    while (view.prompt() != View::Prompt::kConfirm && all > width && from < shown.size())
      all -= GlyphWidth(shown[from++]);
    std::string text;
    for (; from < shown.size(); ++from) text += Utf8(shown[from]);
    const int end = screen.Put(0, y, Cut(text, width), Ink::kStrong);
    if (view.prompt() != View::Prompt::kConfirm) screen.Put(end, y, " ", Ink::kReverse);
    return;
  }
  if (!view.message().empty()) {
    screen.Put(0, y, Cut(view.message(), screen.width()), Ink::kStrong);
    return;
  }
  if (!look.keys) return;
  struct Hint {
    const char *key, *what;
  };
  const std::vector<Hint> in_table{{"F1", "Help"}, {"Enter", "Detail"}, {"F4", "Filter"},
                                   {"F6", "Sort"}, {"F7", "Memory"},    {"F8", "Time"},
                                   {"F9", "Stop"}, {"space", "Tag"},    {"F10", "Quit"}};
  const std::vector<Hint> elsewhere{{"Esc", "Back"}, {"arrows", "Move"}};
  int x = 0;
  for (const Hint& hint : view.page() == View::Page::kTable ? in_table : elsewhere) {
    if (view.readonly() && (hint.key[1] == '7' || hint.key[1] == '8' || hint.key[1] == '9')) continue;
    x = screen.Put(x, y, hint.key, Ink::kStrong);
    x = screen.Put(x, y, hint.what, Ink::kReverse) + 1;
  }
}

void DrawTablePage(Screen& screen, const Model& model, const View& view, const Look& look) {
  const Layout layout(model, view, screen.height());
  layout.gpus.Draw(screen, layout.y_gpus);
  layout.lanes.Draw(screen, layout.y_lanes);
  DrawTable(screen, layout.y_table, layout.table_height, model, view);
  const std::vector<Row> rows = view.Rows(model);
  std::vector<Text> notes = Notes(rows, view.selected_row());
  // Where the table leaves lines free there is room for more than one.
  const int spare = std::max(0, layout.table_height - 2 - static_cast<int>(rows.size()));
  if (notes.size() > static_cast<size_t>(spare) + 1) notes.resize(static_cast<size_t>(spare) + 1);
  for (size_t i = 0; i < notes.size(); ++i) {
    const int y = layout.y_note - static_cast<int>(notes.size() - 1 - i);
    screen.Put(0, y, Cut(notes[i].text, screen.width()), notes[i].ink);
  }
  DrawEvents(screen, layout.y_events, layout.events, model, look);
}

// The page of text that is open, as its lines are on a screen so wide.
std::vector<TextLine> TextPage(const Model& model, const View& view, int width) {
  if (view.page() == View::Page::kHelp) return Wrapped(HelpText(), width);
  if (view.page() == View::Page::kSort) return Wrapped(SortText(view), width);
  for (const TenantSample& tenant : model.sample().tenants) {
    if (tenant.id == view.selected()) return Wrapped(DetailText(tenant, model), width);
  }
  return {};
}

int FirstLineOfText(const Model& model) { return model.lost().empty() ? 1 : 2; }

void DrawTextPage(Screen& screen, const Model& model, const View& view) {
  const std::vector<TextLine> lines = TextPage(model, view, screen.width());
  const int y = FirstLineOfText(model);
  const int height = screen.height() - 1 - y;
  int first = view.scrolled();
  if (view.page() == View::Page::kSort) {
    const auto chosen = std::find_if(lines.begin(), lines.end(),
                                     [](const TextLine& line) { return line.ink == Ink::kReverse; });
    first = static_cast<int>(chosen - lines.begin()) - height / 2;
  }
  first = std::clamp(first, 0, std::max(0, static_cast<int>(lines.size()) - height));
  const int end = std::min(static_cast<int>(lines.size()), first + height);
  for (int at = first; at < end; ++at) {
    const TextLine& line = lines[static_cast<size_t>(at)];
    screen.Put(0, y + at - first, line.text, line.ink);
  }
}

}  // namespace

Screen Draw(const Model& model, const View& view, int width, int height, const Look& look) {
  Screen screen(width, height);
  if (width < kNarrowest || height < kLowest) {
    screen.Put(0, 0, fmt::format("{}x{} is needed", kNarrowest, kLowest));
    return screen;
  }
  DrawTitle(screen, model, view, look);
  if (!model.lost().empty()) screen.Put(0, 1, Cut(model.lost(), width), Ink::kBad);
  if (model.HasSample()) {
    if (view.page() == View::Page::kTable)
      DrawTablePage(screen, model, view, look);
    else
      DrawTextPage(screen, model, view);
  }
  DrawLastLine(screen, view, look);
  if (look.ascii) screen.ToAscii();
  return screen;
}

Room RoomOf(const Model& model, const View& view, int width, int height) {
  if (view.page() == View::Page::kTable)
    return {std::max(1, Layout(model, view, height).table_height - 1), 0};
  const int rows = std::max(1, height - 1 - FirstLineOfText(model));
  return {rows, static_cast<int>(TextPage(model, view, width).size()) - rows};
}

}  // namespace gpumux::tui
