// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <gtest/gtest.h>

namespace gpumux::cli {
namespace {

Table Example() {
  Table table;
  table.AddColumn("NAME");
  table.AddColumn("MEM", Table::Align::kRight);
  table.AddColumn("OWNER", Table::Align::kLeft, 1);
  table.AddColumn("COMMAND", Table::Align::kLeft, 2);
  table.AddRow({{"train"}, {"10.0 GiB", Table::Style::kBad}, {"ann"}, {"python3 train.py"}});
  table.AddRow({{"s"}, {"–"}, {""}, {""}});
  return table;
}

TEST(Table, AlignsByCharactersAndLeavesNoTrailingSpaces) {
  EXPECT_EQ(Example().Render({}),
            "NAME        MEM  OWNER  COMMAND\n"
            "train  10.0 GiB  ann    python3 train.py\n"
            "s             –\n");
}

TEST(Table, AlignsWideCharacters) {
  Table table;
  table.AddColumn("NAME", Table::Align::kLeft);
  table.AddColumn("STATE", Table::Align::kLeft);
  table.AddRow({{"学習"}, {"runs"}});
  table.AddRow({{"abcde"}, {"waits"}});
  EXPECT_EQ(table.Render({}),
            "NAME   STATE\n"
            "学習   runs\n"
            "abcde  waits\n");
}

TEST(Table, DropsTheLeastImportantColumnsThatDoNotFit) {
  EXPECT_EQ(Example().Render({.is_tty = true, .color = false, .width = 39}),
            "NAME        MEM  OWNER\n"
            "train  10.0 GiB  ann\n"
            "s             –\n");
  EXPECT_EQ(Example().Render({.is_tty = true, .color = false, .width = 16}),
            "NAME        MEM\n"
            "train  10.0 GiB\n"
            "s             –\n");
}

TEST(Table, HasColourOnlyOnATerminalThatShowsIt) {
  EXPECT_EQ(Example().Render({.is_tty = true, .color = true, .width = 16}),
            "NAME        MEM\n"
            "train  \x1b[31m10.0 GiB\x1b[0m\n"
            "s             –\n");
}

TEST(Plain, RemovesControlCharactersAndCutsBetweenCharacters) {
  EXPECT_EQ(Plain("a\x1b[31m\n", 100), "a?[31m?");
  // ESC [ as one character, no UTF-8 at all, writing turned around.
  EXPECT_EQ(Plain("a\xc2\x9b"
                  "31m\x9b"
                  "1m\xe2\x80\xae",
                  100),
            "a?31m?1m?");
  EXPECT_EQ(Plain("学習 é\xf0\x9f\x98\x80", 100), "学習 é\xf0\x9f\x98\x80");
  EXPECT_EQ(Plain("abcdefgh", 6), "abc...");
  EXPECT_EQ(Plain("aé–xyzw", 6), "aé–...");
  // Columns, of which some characters take two.
  EXPECT_EQ(Plain("学習学習", 8), "学習学習");
  EXPECT_EQ(Plain("学習学習", 7), "学習...");
  EXPECT_EQ(Plain("学習学習", 6), "学...");
  EXPECT_EQ(Plain("abcdef", 3), "...");
}

}  // namespace
}  // namespace gpumux::cli
