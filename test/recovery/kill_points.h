// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::test {

// All of src/daemon: check-kill-points compares.
inline constexpr const char* kDaemonKillPoints[] = {
    "lease-stored",   "lease-told",  "program-started", "program-ended", "lease-ending",    "lease-finished",
    "end-stored",     "stop-stored", "guard-hello",     "context-asked", "context-charged", "credit-asked",
    "credit-granted", "lease-taken", "run-resuming",    "guard-taken",
};

}  // namespace gpumux::test
