// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/terminal.h"

namespace gpumux::cli {

// What `run` says while it waits: on a terminal one line that is updated as long
// as it fits, else one line a change. Says nothing twice, and nothing at all when quiet.
class WaitingLine {
 public:
  WaitingLine(const Terminal& terminal, bool quiet) : terminal_(terminal), quiet_(quiet) {}
  ~WaitingLine() { Clear(); }
  WaitingLine(const WaitingLine&) = delete;
  WaitingLine& operator=(const WaitingLine&) = delete;

  void Show(const std::string& text);
  // After a stop, in which the shell has written over it.
  void ShowAgain();
  // Removes the updated line, so that other output starts in column one.
  void Clear();
  bool said_something() const { return !last_.empty(); }

 private:
  Terminal terminal_;
  bool quiet_;
  bool on_screen_ = false;
  std::string last_;
};

}  // namespace gpumux::cli
