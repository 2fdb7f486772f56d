// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace gpumux::cli {

// What one of our own streams can do.
struct Terminal {
  bool is_tty = false;
  bool color = false;
  int width = 0;   // columns; 0: no limit
  int height = 0;  // lines; 0: not known
};

// stdout or stderr. Colour: a TTY, TERM is not "dumb", NO_COLOR is not set.
Terminal TerminalOf(int fd);

// Writes "gpumux: TEXT\n" to stderr in one write.
void Say(std::string_view text);
// Writes `text` to stderr as it is.
void PrintError(std::string_view text);
// Writes `text` to stdout; false when it could not be written (a closed pipe).
bool Print(std::string_view text);

// `text` without what could steer a terminal, cut to `width` columns with "..." if longer:
// command lines and names come from other users' programs.
std::string Plain(std::string_view text, size_t width);

// Columns of a terminal that UTF-8 text takes.
size_t DisplayWidth(std::string_view text);

}  // namespace gpumux::cli
