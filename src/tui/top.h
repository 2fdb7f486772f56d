// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"
#include "tui/daemon.h"

namespace gpumux::tui {

struct TopOptions {
  std::chrono::milliseconds interval{1000};
  bool readonly = false;
  bool ascii = false;
  bool color = true;
};

// One screen as text, from two samples an interval apart where a daemon answers.
// Fails as the daemon's figures and NVML's do if there are neither.
Result<std::string> OneScreen(Daemon& daemon, const TopOptions& options, int width, int height);

// Until a person leaves; 0, or 128 and the number of a signal. kUnsupported: the
// terminal is not known.
Result<int> RunTop(Daemon& daemon, const TopOptions& options);

}  // namespace gpumux::tui
