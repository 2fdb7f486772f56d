// SPDX-License-Identifier: Apache-2.0
#include "tui/cells.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace gpumux::tui {
namespace {

TEST(Cells, NothingThatMovesATerminalIsShown) {
  // Escape, CSI as one C1 character and as one byte, bell, delete, a newline, text from right to
  // left, a zero-width joiner, a combining accent, a byte order mark, half a character, an
  // overlong '/', a surrogate, a private and a tag character.
  const std::pair<std::string, std::string> cases[] = {{"\x1b[2J", "?[2J"},
                                                       {"\xc2\x9b"
                                                        "2J",
                                                        "?2J"},
                                                       {"\x9b"
                                                        "2J",
                                                        "?2J"},
                                                       {"\a\x7f\n\r\t", "?????"},
                                                       {"\xe2\x80\xae", "?"},
                                                       {"\xe2\x80\x8d", "?"},
                                                       {"e\xcc\x81", "e?"},
                                                       {"\xef\xbb\xbf", "?"},
                                                       {"a\xe6\x97", "a??"},
                                                       {"\xc0\xaf", "??"},
                                                       {"\xed\xa0\x80", "???"},
                                                       {"\xee\x80\x80", "?"},
                                                       {"\xf3\xa0\x81\x81", "?"},
                                                       {"\xf7\xbf\xbf\xbf", "????"},
                                                       {std::string("a\0b", 3), "a?b"}};
  for (const auto& [text, shown] : cases) {
    Screen screen(20, 1);
    screen.Put(0, 0, text);
    EXPECT_EQ(screen.Line(0), shown);
  }
}

TEST(Cells, EveryByteSequenceComesOutPrintable) {
  // All pairs of bytes behind the beginnings of longer characters.
  for (const char* begin : {"", "\xe2", "\xf0\x9f", "\xc2"}) {
    for (int pair = 0; pair < 0x10000; ++pair) {
      const std::string text = begin + std::string{static_cast<char>(pair >> 8), static_cast<char>(pair)};
      for (const char32_t glyph : Shown(text)) {
        ASSERT_GE(glyph, U' ') << pair;
        ASSERT_FALSE(glyph >= 0x7f && glyph < 0xa0) << pair;
        ASSERT_GT(GlyphWidth(glyph), 0) << pair;
      }
    }
  }
}

TEST(Cells, WideCharactersTakeTwoColumns) {
  Screen screen(5, 1);
  EXPECT_EQ(screen.Put(0, 0, "学習x"), 5);
  EXPECT_EQ(screen.Line(0), "学習x");
  // Half of one cannot stay.
  screen.Put(1, 0, "a");
  EXPECT_EQ(screen.Line(0), " a習x");
  // One that does not fit is not begun.
  Screen narrow(3, 1);
  EXPECT_EQ(narrow.Put(0, 0, "学習"), 2);
  EXPECT_EQ(narrow.Line(0), "学");
  EXPECT_EQ(TextWidth("学a"), 3);
  EXPECT_EQ(Cut("学習中", 4), "学~");
  EXPECT_EQ(Cut("学習", 4), "学習");
  EXPECT_EQ(Cut("abc", 0), "");
}

TEST(Cells, WritingOutsideDoesNothing) {
  Screen screen(4, 2);
  screen.Put(-1, 0, "ab");
  screen.Put(0, 2, "ab");
  screen.Put(0, -1, "ab");
  screen.Put(3, 1, "ab");
  screen.Fill(-3, 0, 4, U'x');
  screen.Fill(2, 5, 4, U'x');
  screen.SetInk(-5, 0, 100, Ink::kReverse);
  EXPECT_EQ(screen.Text(), "x\n   a\n");
}

TEST(Cells, AsciiHasNothingElse) {
  Screen screen(12, 1);
  screen.Put(0, 0, "–·▁▄▇█│学é▲");
  screen.ToAscii();
  EXPECT_EQ(screen.Line(0), "-.158#|? ?^");
}

}  // namespace
}  // namespace gpumux::tui
