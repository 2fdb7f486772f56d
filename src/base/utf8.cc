// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

namespace gpumux {

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

bool SteersATerminal(char32_t character) {
  return character < 0x20 || (character >= 0x7f && character < 0xa0) || character == 0x61c ||
         (character >= 0x200e && character <= 0x200f) || (character >= 0x2028 && character <= 0x202e) ||
         (character >= 0x2066 && character <= 0x2069);
}

}  // namespace gpumux
