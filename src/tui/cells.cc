// SPDX-License-Identifier: Apache-2.0
#include "tui/cells.h"

#include <algorithm>

#include "base/utf8.h"

namespace gpumux::tui {
namespace {

char32_t NearestAscii(char32_t glyph) {
  switch (glyph) {
    case U'–':
    case U'─':
      return '-';
    case U'│':
      return '|';
    case U'·':
      return '.';
    case U'█':
      return '#';
    case U'▲':
      return '^';
    case U'▼':
      return 'v';
    default:
      break;
  }
  // Heights of a lane, in eighths: as the digit of its tenths.
  if (glyph >= U'▁' && glyph <= U'▇') return '0' + (glyph - U'▁' + 1) * 10 / 8;
  return '?';
}

}  // namespace

std::u32string Shown(std::string_view text) {
  std::u32string out;
  while (!text.empty()) {
    const char32_t glyph = TakeUtf8(text);
    out += GlyphWidth(glyph) > 0 ? glyph : U'?';
  }
  return out;
}

int TextWidth(std::string_view text) {
  int width = 0;
  for (const char32_t glyph : Shown(text)) width += GlyphWidth(glyph);
  return width;
}

std::string Cut(std::string_view text, int width) {
  const std::u32string shown = Shown(text);
  const bool fits = TextWidth(text) <= width;
  std::string out;
  int used = fits ? 0 : 1;  // for the "~"
  for (const char32_t glyph : shown) {
    used += GlyphWidth(glyph);
    if (used > width) break;
    out += Utf8(glyph);
  }
  return fits || width <= 0 ? out : out + "~";
}

Screen::Screen(int width, int height)
    : width_(std::max(width, 1)),
      height_(std::max(height, 1)),
      cells_(static_cast<size_t>(width_) * static_cast<size_t>(height_)) {}

void Screen::Set(int x, int y, char32_t glyph, Ink ink) {
  Cell& cell = cells_[Index(x, y)];
  // Half of a wide glyph is none.
  if (cell.glyph == 0 && x > 0) cells_[Index(x - 1, y)].glyph = U' ';
  if (x + 1 < width_ && cells_[Index(x + 1, y)].glyph == 0) cells_[Index(x + 1, y)].glyph = U' ';
  cell = {glyph, ink};
}

int Screen::Put(int x, int y, std::string_view text, Ink ink, int right) {
  const int end = right < 0 ? width_ : std::min(right, width_);
  if (y < 0 || y >= height_) return x;
  for (const char32_t glyph : Shown(text)) {
    const int wide = GlyphWidth(glyph);
    if (x < 0 || x + wide > end) return x;
    Set(x, y, glyph, ink);
    if (wide == 2) {
      Set(x + 1, y, U' ', ink);
      cells_[Index(x + 1, y)].glyph = 0;
    }
    x += wide;
  }
  return x;
}

int Screen::Fill(int x, int y, int count, char32_t glyph, Ink ink) {
  const int from = std::max(x, 0), to = std::min(x + std::max(count, 0), width_);
  if (y >= 0 && y < height_)
    for (int at = from; at < to; ++at) Set(at, y, glyph, ink);
  return std::max(x, to);
}

void Screen::SetInk(int x, int y, int count, Ink ink) {
  if (y < 0 || y >= height_) return;
  for (int at = std::max(x, 0); at < std::min(x + count, width_); ++at) cells_[Index(at, y)].ink = ink;
}

void Screen::ToAscii() {
  for (Cell& cell : cells_) {
    if (cell.glyph == 0) cell.glyph = U' ';  // beside the '?' of a wide glyph
    if (cell.glyph > 0x7e) cell.glyph = NearestAscii(cell.glyph);
  }
}

std::string Screen::Line(int y) const {
  std::string out;
  for (int x = 0; x < width_; ++x)
    if (const char32_t glyph = At(x, y).glyph; glyph != 0) out += Utf8(glyph);
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

std::string Screen::Text() const {
  std::string out;
  for (int y = 0; y < height_; ++y) out += Line(y) + "\n";
  return out;
}

}  // namespace gpumux::tui
