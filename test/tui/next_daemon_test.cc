// SPDX-License-Identifier: Apache-2.0
//
// `gpumux top` and a daemon that hangs, and one that dies.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "top.h"

namespace gpumux::test {
namespace {

TEST_F(Top, GoesOnWithTheNextDaemon) {
  Process a = Hold("alpha", "10GiB");
  ASSERT_TRUE(
      WaitUntil("it runs", [&] { return box_.DaemonPid() > 0 && box_.StatusData()["tenants"].size() == 1; }));
  Pane pane(box_, 80, 24, Command("--interval 200ms"));
  ASSERT_TRUE(pane.WaitForText("alpha"));
  // One that hangs keeps no key waiting.
  const pid_t daemon = box_.DaemonPid();
  ASSERT_EQ(kill(daemon, SIGSTOP), 0);
  ASSERT_TRUE(pane.WaitForText("the daemon does not answer"));
  pane.Press({"F1"});
  ASSERT_TRUE(pane.WaitForText("Bar of memory"));
  pane.Press({"Escape"});
  kill(daemon, SIGCONT);
  ASSERT_TRUE(pane.WaitForText("alpha"));
  kill(box_.DaemonPid(), SIGKILL);
  Process next = Hold("beta", "10GiB");
  ASSERT_TRUE(pane.WaitForText("beta"));
  ASSERT_TRUE(pane.WaitUntilGone("these figures are NVML's alone"));
}

}  // namespace
}  // namespace gpumux::test
