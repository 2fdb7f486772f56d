// SPDX-License-Identifier: Apache-2.0
//
// A daemon that cannot go on ends at once, in the middle of whatever it does: what it leaves
// is what any death leaves, and the next daemon takes over (docs/design/takeover.md).
#pragma once

#include <string>

namespace gpumux::daemon {

// With `why` as the last line of the log. The exit code is that of "unavailable": a service
// manager starts the next one.
[[noreturn]] void EndForTheNextDaemon(const std::string& why);

// From here on that is what happens when the process gets no more memory. To go on with a
// decision that was carried out by half could promise bytes twice.
void EndWhenMemoryRunsOut();

}  // namespace gpumux::daemon
