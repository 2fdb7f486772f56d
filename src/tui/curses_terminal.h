// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "tui/cells.h"
#include "tui/view.h"

namespace gpumux::tui {

// The terminal of this process: stdin and stdout. One at a time, one thread.
class CursesTerminal {
 public:
  // kUnsupported: a terminal of a kind that is not known (TERM).
  static Result<std::unique_ptr<CursesTerminal>> Open(bool color);
  // Puts the terminal back as it was.
  ~CursesTerminal();
  CursesTerminal(const CursesTerminal&) = delete;
  CursesTerminal& operator=(const CursesTerminal&) = delete;

  int width() const;
  int height() const;
  // Sends what has changed since the last one.
  void Show(const Screen& screen);
  // What was typed, without waiting; nullopt: nothing. A change of size is a Key of kOther.
  std::optional<Key> Read();

 private:
  struct State;
  explicit CursesTerminal(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace gpumux::tui
