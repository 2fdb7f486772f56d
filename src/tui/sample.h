// SPDX-License-Identifier: Apache-2.0
//
// What the daemon's answers say, as far as it is shown. Texts are as they came:
// whoever shows them goes through cells.h. Unknown is nullopt, with its reason
// beside it where there is one; never 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::tui {

using Bytes = std::optional<uint64_t>;

struct StrangerSample {
  int64_t pid = 0;
  std::string name, owner, container;
  Bytes used;
};

struct GpuSample {
  std::string uuid, name, mode, mode_reason;  // mode "": none
  std::string label = "?";                    // "0", or "0:2" an instance of a partitioned GPU
  Bytes total, reserve, guaranteed, used, unmanaged, unexplained, device_used, promisable;
  std::optional<double> busy_ratio;
  std::string promisable_reason, remedy;
  std::vector<StrangerSample> strangers;
  std::optional<uint64_t> other_daemon_pid;  // whose ledger this GPU's is
};

struct TenantGpuSample {
  std::string uuid;
  std::string label = "?";  // "0", or "0:2" an instance of a partitioned GPU
  Bytes guaranteed, limit, used, peak, at_risk;
  std::string at_risk_why;
};

struct MemberSample {
  std::optional<uint64_t> pid;
  std::string name, guard, waits;
  bool alive = true;
  Bytes charged;
};

struct TurnsSample {
  std::string state;
  std::optional<double> gpu_seconds, part_ratio;
  std::optional<uint64_t> turns, overran, unused;
};

struct GateSample {
  std::string role, held_by;
  std::optional<double> busy_seconds, closed_seconds;
  std::optional<uint64_t> waits, forced_open;
};

struct WaitingSample {
  uint64_t position = 0;
  std::string reason, starts_at, starts_at_reason;
};

struct TenantSample {
  std::string id, name, owner, state, mode, mode_reason, priority, isolation, command, cwd, started_at;
  std::vector<TenantGpuSample> gpus;
  Bytes guaranteed, limit, used, peak, at_risk;
  std::string limit_reason;
  std::string enforced, enforced_reason;  // the memory limit; "": nothing to enforce now
  std::string compute, compute_reason;
  std::optional<double> share_min, share_max, waited_seconds, time_limit_seconds;
  bool above_limit = false, strict = false;
  std::string above_limit_reason;
  std::optional<uint64_t> refusals, launches, reservation_pid;
  std::optional<TurnsSample> turns;
  std::optional<GateSample> gate;
  std::optional<WaitingSample> waiting;
  std::vector<MemberSample> members;
  std::vector<std::pair<std::string, std::string>> labels;
};

struct Sample {
  bool simulated = false;
  std::string daemon_user, daemon_version, driver_version;
  std::optional<uint64_t> daemon_pid;  // unset: the figures are NVML's alone
  std::vector<GpuSample> gpus;
  std::vector<TenantSample> tenants;
};

struct EventSample {
  uint64_t id = 0;
  std::optional<uint64_t> at_unix_milliseconds;
  std::string kind, severity, tenant, tenant_name, text, user;
};

struct EventsSample {
  std::vector<EventSample> events;
  uint64_t next_after = 0;
  bool more = false;
};

// The bodies of GET /v1/status and GET /v1/events. kInternal: the text is no such body.
Result<Sample> ReadSample(const std::string& json);
Result<EventsSample> ReadEvents(const std::string& json);

}  // namespace gpumux::tui
