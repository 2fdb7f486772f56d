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
  std::string out;
  while (!text.empty()) {
    const char32_t character = TakeUtf8(text);
    out += SteersATerminal(character) ? "?" : Utf8(character);
  }
  if (out.size() <= width) return out;
  // Never cut inside a UTF-8 character.
  size_t end = width > 3 ? width - 3 : 0;
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;
  return out.substr(0, end) + "...";
}

}  // namespace gpumux::cli
