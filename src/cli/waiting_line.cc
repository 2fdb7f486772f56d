// SPDX-License-Identifier: Apache-2.0
#include "cli/waiting_line.h"

#include <utility>

namespace gpumux::cli {

void WaitingLine::Show(const std::string& text) {
  if (quiet_ || text == last_) return;
  last_ = text;
  const std::string line = "gpumux: " + text;
  // Without colour the terminal may know no escape codes either. A line that
  // wraps cannot be updated, and cut it would lose who holds the memory.
  const bool wraps = terminal_.width > 0 && line.size() >= static_cast<size_t>(terminal_.width);
  if (!terminal_.is_tty || !terminal_.color || wraps) {
    Clear();
    Say(text);
    return;
  }
  PrintError("\r\x1b[K" + line);
  on_screen_ = true;
}

void WaitingLine::ShowAgain() {
  const std::string text = std::exchange(last_, "");
  on_screen_ = false;
  if (!text.empty()) Show(text);
}

void WaitingLine::Clear() {
  if (on_screen_) PrintError("\r\x1b[K");
  on_screen_ = false;
}

}  // namespace gpumux::cli
