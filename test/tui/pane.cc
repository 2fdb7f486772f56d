// SPDX-License-Identifier: Apache-2.0
#include "pane.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpumux::test {
namespace {

constexpr const char* kTmux = "/usr/bin/tmux";

}  // namespace

bool Pane::Available() { return ::access(kTmux, X_OK) == 0; }

Pane::Pane(Sandbox& box, int width, int height, const std::string& command)
    : box_(box), socket_(box.dir() + "/tmux") {
  box.SetEnv("LC_ALL", "C.UTF-8");
  box.SetEnv("TZ", "UTC");
  box.SetEnv("SHELL", "/bin/sh");
  // The last program keeps the screen, and Ctrl-C is for the command alone.
  Tmux({"new-session", "-d", "-x", std::to_string(width), "-y", std::to_string(height),
        "trap : INT; " + command + "; echo LEFT $?; exec sleep 600"});
}

std::string Pane::Tmux(std::vector<std::string> arguments) {
  std::vector<std::string> argv{kTmux, "-u", "-f", "/dev/null", "-S", socket_};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const Outcome ran = box_.Run(argv);
  EXPECT_EQ(ran.exit_code, 0) << arguments[0] << ": " << ran.err;
  return ran.out;
}

void Pane::Press(const std::vector<std::string>& keys) {
  std::vector<std::string> arguments{"send-keys"};
  arguments.insert(arguments.end(), keys.begin(), keys.end());
  Tmux(arguments);
}

void Pane::Type(const std::string& text) { Tmux({"send-keys", "-l", text}); }

void Pane::Resize(int width, int height) {
  Tmux({"resize-window", "-x", std::to_string(width), "-y", std::to_string(height)});
}

std::string Pane::Screen() { return Tmux({"capture-pane", "-p"}); }

std::string Pane::Format(const std::string& format) { return Tmux({"display-message", "-p", format}); }

bool Pane::WaitFor(const std::string& what, const std::function<bool(const std::string&)>& shown) {
  std::string screen;
  const bool came = WaitUntil(what, [&] { return shown(screen = Screen()); });
  if (!came) ADD_FAILURE() << "the screen is\n" << screen;
  return came;
}

bool Pane::WaitForText(const std::string& text) {
  return WaitFor("the screen shows " + text,
                 [&](const std::string& screen) { return screen.find(text) != std::string::npos; });
}

bool Pane::WaitUntilGone(const std::string& text) {
  return WaitFor("the screen does not show " + text,
                 [&](const std::string& screen) { return screen.find(text) == std::string::npos; });
}

}  // namespace gpumux::test
