// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpumux {

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

}  // namespace

char32_t TakeUtf8(std::string_view& text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80       ? 1
                        : first >> 5 == 6  ? 2
                        : first >> 4 == 14 ? 3
                        : first >> 3 == 30 ? 4
                                           : 0;
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  char32_t character = length == 1 ? first : first & (0x7fu >> length);
  bool good = length > 0 && length <= text.size();
  for (size_t i = 1; good && i < length; ++i) {
    good = byte(i) >> 6 == 2;
    character = character << 6 | (byte(i) & 0x3fu);
  }
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  good = good && character >= kLeast[length] && character <= 0x10ffff && !surrogate;
  text.remove_prefix(good ? length : 1);
  return good ? character : 0;
}

std::string Utf8(char32_t character) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (character >> shift & 0x3f)); };
  if (character < 0x80) return {static_cast<char>(character)};
  if (character < 0x800) return {static_cast<char>(0xc0 | character >> 6), tail(0)};
  if (character < 0x10000) return {static_cast<char>(0xe0 | character >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | character >> 18), tail(12), tail(6), tail(0)};
}

int GlyphWidth(char32_t character) {
  return Within(kNarrow, character) ? 1 : Within(kWide, character) ? 2 : 0;
}

bool SteersATerminal(char32_t character) {
  return character < 0x20 || (character >= 0x7f && character < 0xa0) || character == 0x61c ||
         (character >= 0x200e && character <= 0x200f) || (character >= 0x2028 && character <= 0x202e) ||
         (character >= 0x2066 && character <= 0x2069);
}

}  // namespace gpumux
