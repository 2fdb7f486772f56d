// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/doctor/environment.h"

namespace gpumux::cli::doctor {

// What the answering daemon says, where a check needs it.

// The first place that answers; null if none does.
const DaemonView* Answering(const Environment& environment);

struct Stranger {
  pid_t pid = 0;
  unsigned gpu = 0;  // NVML's index
  std::optional<uint64_t> bytes;
};
// By the daemon's own list; without a daemon, every process that NVML shows.
// kUnavailable: neither answers.
Result<std::vector<Stranger>> UnmanagedOf(const Environment& environment);

// A process of a tenant.
struct Membership {
  std::string tenant_id;
  std::string tenant_name;
  std::string guard;      // "in force", "not in force", "absent"; empty: the daemon knows the tenant alone
  std::string mem_limit;  // as text
};
// nullopt: a daemon answers, and the process is in no tenant of it. kUnavailable: no daemon.
Result<std::optional<Membership>> MembershipOf(const Environment& environment, pid_t pid);

}  // namespace gpumux::cli::doctor
