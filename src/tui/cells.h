// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::tui {

// How a cell looks. The terminal's own colours stay: what is said by a colour is
// also said by a word or a sign, so that light, dark and colourless terminals show the same.
enum class Ink : uint8_t { kPlain, kDim, kStrong, kReverse, kGood, kWarning, kBad };

struct Cell {
  char32_t glyph = U' ';  // 0: the right half of the wide glyph before it
  Ink ink = Ink::kPlain;
  bool operator==(const Cell&) const = default;
};

// UTF-8 as characters whose width is known; whatever else there is becomes '?'.
std::u32string Shown(std::string_view text);
int TextWidth(std::string_view text);
// At most `width` columns; what was longer ends with "~".
std::string Cut(std::string_view text, int width);

// A screen as it shall be. Writing outside of it does nothing.
class Screen {
 public:
  Screen(int width, int height);
  int width() const { return width_; }
  int height() const { return height_; }
  const Cell& At(int x, int y) const { return cells_[Index(x, y)]; }

  // Both return the column behind what was written; `right` is the first column
  // that must stay free (default: the width).
  int Put(int x, int y, std::string_view text, Ink ink = Ink::kPlain, int right = -1);
  int Fill(int x, int y, int count, char32_t glyph, Ink ink = Ink::kPlain);
  void SetInk(int x, int y, int count, Ink ink);
  // Everything that is not ASCII, as its nearest sign of ASCII.
  void ToAscii();

  // A line's text without trailing spaces; the whole, each line ended by a line feed.
  std::string Line(int y) const;
  std::string Text() const;

  bool operator==(const Screen&) const = default;

 private:
  size_t Index(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }
  void Set(int x, int y, char32_t glyph, Ink ink);

  int width_, height_;
  std::vector<Cell> cells_;
};

}  // namespace gpumux::tui
