// SPDX-License-Identifier: Apache-2.0
//
// The parts of a screen, a file each. Each draws into the lines that it was
// given, from `y` on, at most `height` of them.
#pragma once

#include <string>
#include <vector>

#include "tui/cells.h"
#include "tui/draw.h"

namespace gpumux::tui {

// GPUs: 1 to 3 lines each, as many as there is room for.
class GpuPart {
 public:
  GpuPart(const Model& model, const View& view, int height);
  int height() const { return height_; }
  void Draw(Screen& screen, int y) const;

 private:
  void DrawOne(Screen& screen, int y, const GpuSample& gpu) const;
  const Model& model_;
  std::vector<const GpuSample*> gpus_;
  int lines_each_ = 3, shown_ = 0, height_ = 0;
};

// The bar of a GPU's memory: a letter for what a tenant uses, the small letter for
// what it was promised and does not use yet.
void DrawMemoryBar(Screen& screen, int x, int y, int width, const Model& model, const GpuSample& gpu);

// Who held each GPU when, a line a tenant; and where that is not known, why.
class LanePart {
 public:
  LanePart(const Model& model, const View& view, int height);
  int height() const { return static_cast<int>(lines_.size()); }
  void Draw(Screen& screen, int y) const;

 private:
  struct Line {
    const TenantSample* tenant = nullptr;  // a lane; else `text`
    std::string text;
    Ink ink = Ink::kPlain;
  };
  const Model& model_;
  std::vector<Line> lines_;
};

void DrawTable(Screen& screen, int y, int height, const Model& model, const View& view);

// Events, the newest last.
void DrawEvents(Screen& screen, int y, int height, const Model& model, const Look& look);

// What is special about a row; "": nothing.
Text NoteOf(const Row& row);
// That of the selected row, then those of others.
std::vector<Text> Notes(const std::vector<Row>& rows, size_t selected);

// Pages of text.
struct TextLine {
  std::string text;
  Ink ink = Ink::kPlain;
};
std::vector<TextLine> DetailText(const TenantSample& tenant, const Model& model);
std::vector<TextLine> HelpText();
std::vector<TextLine> SortText(const View& view);
// Lines that are too long go on in the next one, under where their text began.
std::vector<TextLine> Wrapped(const std::vector<TextLine>& lines, int width);

}  // namespace gpumux::tui
