// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../support/sandbox.h"

namespace gpumux::test {

// A terminal of tmux in which a command runs, with the environment of the sandbox.
// When the command is over, the screen has a last line "LEFT " and its exit status.
class Pane {
 public:
  static bool Available();

  Pane(Sandbox& box, int width, int height, const std::string& command);
  // Keys as tmux calls them: "F9", "Enter", "y".
  void Press(const std::vector<std::string>& keys);
  void Type(const std::string& text);
  void Resize(int width, int height);
  // As it is now, without trailing spaces.
  std::string Screen();
  bool WaitFor(const std::string& what, const std::function<bool(const std::string&)>& shown);
  bool WaitForText(const std::string& text);
  bool WaitUntilGone(const std::string& text);
  std::string Format(const std::string& format);  // of tmux: "#{pane_title}"

 private:
  std::string Tmux(std::vector<std::string> arguments);
  Sandbox& box_;
  std::string socket_;
};

}  // namespace gpumux::test
