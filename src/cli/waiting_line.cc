// SPDX-License-Identifier: Apache-2.0
#include "cli/waiting_line.h"

namespace gpumux::cli {

void WaitingLine::Show(const std::string& text) {
  if (quiet_ || text == last_) return;
  last_ = text;
  // Without colour the terminal may know no escape codes either.
  if (!terminal_.is_tty || !terminal_.color) {
    Say(text);
    return;
  }
  const std::string line = "gpumux: " + text;
  PrintError("\r\x1b[K" +
             Plain(line, terminal_.width > 1 ? static_cast<size_t>(terminal_.width) - 1 : line.size()));
  on_screen_ = true;
}

void WaitingLine::Clear() {
  if (on_screen_) PrintError("\r\x1b[K");
  on_screen_ = false;
}

}  // namespace gpumux::cli
