// SPDX-License-Identifier: Apache-2.0
#include "tui/cells.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace gpumux::tui {
namespace {

using Range = std::pair<char32_t, char32_t>;

// Letters and signs that every terminal shows in one column, none of which
// combines with others or changes the direction of writing.
constexpr Range kNarrow[] = {{0x20, 0x7e},     {0xa1, 0xac},     {0xae, 0x2ff},    {0x370, 0x377},
                             {0x37a, 0x37f},   {0x384, 0x3ff},   {0x400, 0x482},   {0x48a, 0x52f},
                             {0x2010, 0x2027}, {0x2030, 0x205e}, {0x20a0, 0x20bf}, {0x2100, 0x214f},
                             {0x2190, 0x2319}, {0x2500, 0x25cf}, {0xff61, 0xff9f}};
// Scripts of East Asia, in two columns.
constexpr Range kWide[] = {{0x3001, 0x3029},  {0x3030, 0x303e}, {0x3041, 0x3096}, {0x309b, 0x30ff},
                           {0x3105, 0x312f},  {0x3131, 0x318e}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff},
                           {0xac00, 0xd7a3},  {0xf900, 0xfaff}, {0xff01, 0xff60}, {0xffe0, 0xffe6},
                           {0x20000, 0x2fffd}};

template <size_t kCount>
bool Within(const Range (&ranges)[kCount], char32_t glyph) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& range) { return glyph >= range.first && glyph <= range.second; });
}

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

int GlyphWidth(char32_t glyph) { return Within(kNarrow, glyph) ? 1 : Within(kWide, glyph) ? 2 : 0; }

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
