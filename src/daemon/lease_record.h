// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/promise.h"
#include "daemon/carried.h"
#include "daemon/tenant.h"

namespace gpumux::daemon {

// What the store keeps of a lease: all that neither NVML nor /proc nor the
// tenant's processes can tell the next daemon.
struct LeaseRecord {
  std::string id;
  uid_t uid = 0;
  ProcessName run;
  std::optional<ProcessName> child;
  core::Mode mode = core::Mode::kTimeslice;
  std::string mode_reason;
  std::string apart;                 // why it runs outside the MPS server of its mode; empty: it does not
  std::vector<core::Share> shares;   // by slot
  std::vector<uint64_t> peak_bytes;  // by slot
  std::string request;               // as `run` sent it
  Time admitted{};                   // CLOCK_MONOTONIC: the same for every process of this boot
  std::chrono::system_clock::time_point admitted_wall{};
  double waited_seconds = 0;
  bool guard_seen = false;
  bool frees_as_it_goes = false;
  bool reservation = false;  // of `child`; there is no `run`
  std::string stop_reason;   // empty: it is not being stopped
  int stop_signal = 0;
  std::optional<Time> killed_at;  // CLOCK_MONOTONIC
  Carried carried;                // for the history
  std::optional<Ended> ended;     // its program has; `why` is found when nothing of it is left
};

std::string FormatLeaseRecord(const LeaseRecord& record);
// kInvalid names what is wrong. Any bytes may come.
Result<LeaseRecord> ParseLeaseRecord(std::string_view text);

}  // namespace gpumux::daemon
