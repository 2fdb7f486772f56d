// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpumux {

// The character at the beginning of `text`, which must not be empty and is shortened
// by it. 0 where the bytes are no UTF-8 (then by one byte); also for a zero byte.
char32_t TakeUtf8(std::string_view& text);

// One character as UTF-8.
std::string Utf8(char32_t character);

// Moves a terminal, hides from it what follows, or turns the direction of writing:
// control characters of ASCII and of Latin-1 (ESC [ is U+009B too), and marks of direction.
bool SteersATerminal(char32_t character);

// Columns that a character takes on a terminal: 1 or 2, and 0 where that is not known:
// control characters, those that turn the writing around, those that combine
// with others, and all whose width terminals do not agree on.
int GlyphWidth(char32_t character);

}  // namespace gpumux
