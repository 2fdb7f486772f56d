// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/utf8.h"

namespace gpumux::cli {
namespace {

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Of one whose width is not known most terminals make one.
size_t Columns(char32_t character) { return GlyphWidth(character) == 2 ? 2 : 1; }

}  // namespace

Terminal TerminalOf(int fd) {
  Terminal terminal;
  terminal.is_tty = ::isatty(fd) == 1;
  if (!terminal.is_tty) return terminal;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.color = !(term && std::strcmp(term, "dumb") == 0) && !(no_color && *no_color);
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0) {
    terminal.width = size.ws_col;
    terminal.height = size.ws_row;
  }
  return terminal;
}

void Say(std::string_view text) {
  std::string line = "gpumux: ";
  line += text;
  line += '\n';
  (void)WriteAll(STDERR_FILENO, line);
}

void PrintError(std::string_view text) { (void)WriteAll(STDERR_FILENO, text); }

bool Print(std::string_view text) { return WriteAll(STDOUT_FILENO, text); }

std::string Plain(std::string_view text, size_t width) {
  constexpr std::string_view kMore = "...";
  std::string out;
  size_t columns = 0, kept = 0;  // `kept`: bytes that leave room for the dots
  while (!text.empty()) {
    const char32_t character = TakeUtf8(text);
    const bool shown = !SteersATerminal(character);
    out += shown ? Utf8(character) : "?";
    columns += shown ? Columns(character) : 1;
    if (columns + kMore.size() <= width) kept = out.size();
  }
  return columns <= width ? out : out.substr(0, kept).append(kMore);
}

size_t DisplayWidth(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) columns += Columns(TakeUtf8(text));
  return columns;
}

}  // namespace gpumux::cli
