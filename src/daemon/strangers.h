// SPDX-License-Identifier: Apache-2.0
//
// Processes on a GPU without a lease, and what they do to promises
// (docs/design/strangers.md).
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

#include "daemon/events.h"
#include "daemon/tenants.h"

namespace gpumux::daemon {

struct GpuState;

// A process on a GPU that is of no tenant.
struct Stranger {
  ProcessName process;  // start time 0: it cannot be seen (gone, or of another pid namespace)
  std::string name;     // "" where it cannot be seen
  std::optional<uid_t> owner;
  std::string container;  // "": in none that is known
  uint64_t bytes = 0;     // what is subtracted for it, the driver's share included

  // "pid 812 (python3 of bob, docker 3f0c5d1e9a2b)"
  std::string Describe() const;
};

// The GPU's strangers are now these: pid and bytes. Says who came and who went.
void NoteStrangers(GpuState& gpu, const std::map<pid_t, uint64_t>& found, EventLog& events);

// Which promises on this GPU are not covered, after a reading: says when one
// comes to be, and when it is covered again.
void WatchRisk(const GpuState& gpu, size_t gpu_index, Tenants& tenants, EventLog& events, Time now);

}  // namespace gpumux::daemon
