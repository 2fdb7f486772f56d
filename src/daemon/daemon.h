// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/loopback_address.h"
#include "base/paths.h"
#include "core/policy.h"
#include "core/turns.h"
#include "daemon/gates.h"
#include "daemon/held_descriptors.h"
#include "daemon/service_manager.h"
#include "gpu/nvml.h"

namespace gpumux::daemon {

struct MetricsSettings {
  std::optional<LoopbackAddress> listen = {};  // on TCP too
  bool labels = false;                         // of pods, for everybody who reads metrics
};

struct DaemonSettings {
  RuntimePaths paths;
  std::string guard_library;
  std::string keeper_program;  // empty: no keeper
  // Leave when there has been no tenant and no request for this long.
  std::optional<std::chrono::nanoseconds> idle_exit = {};
  bool for_everyone = false;  // the machine's daemon: other users may connect
  core::Policy policy = {};
  HoldTimes hold = {};
  GateTimes gate = {};
  core::Turns::Times turns = {};
  std::chrono::seconds history_keep = std::chrono::hours(24 * 365);
  std::chrono::nanoseconds mps_idle_time = std::chrono::seconds(30);
  MetricsSettings metrics = {};
  // At SIGHUP: what holds from then on. An error leaves all as it was. May be empty.
  std::function<Result<core::Policy>()> reload = {};
  // Of whom that is so: its members, or everybody. Sockets that the service
  // manager passed have the rights that it gave them.
  std::optional<gid_t> socket_group = {};
  ServiceManager service = {};
};

// All parts of gpumuxd, wired together on one loop.
class Daemon {
 public:
  Daemon(DaemonSettings settings, gpu::GpuSource source, gpu::Nvml& nvml, const Clock& clock);
  ~Daemon();

  // Opens the sockets. kConflict: another daemon listens there.
  Status Start();
  // Until SIGTERM, SIGINT, or idle long enough. Tenants go on.
  void Run();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace gpumux::daemon
