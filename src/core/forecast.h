// SPDX-License-Identifier: Apache-2.0
//
// When could a request start, by the time limits of those that run? Two
// answers, for two uses:
//
//   kAsNow   everyone keeps what is charged to it now until its time is over.
//            The reservation of a request that waits: who would end later than
//            that may not start in front of it.
//   kAtMost  everyone takes all that its limit allows until then, and who has no
//            time limit stays. What can be told as "at the latest".
//
// Both suppose that processes outside gpumux hold what they hold now.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/admission.h"
#include "core/running.h"

namespace gpumux::core {

class Forecast {
 public:
  using Time = std::chrono::nanoseconds;
  enum class Charge { kAsNow, kAtMost };

  // `gpus` must outlive it.
  Forecast(const std::vector<GpuSnapshot>& gpus, const std::vector<Running>& running, Time now,
           Charge charge);

  // The first time at which enough of its GPUs have room; on each of them not
  // before `not_before`. Nullopt: that depends on somebody without a time limit,
  // or on a GPU that is closed.
  std::optional<Time> Earliest(const Needs& needs, const std::map<gpu::Uuid, Time>& not_before) const;

  // One more tenant, as it will be once it has started: on all GPUs of `needs`,
  // with at most `most_bytes` of each (nullopt: whatever is promisable).
  void Add(const Needs& needs, const std::map<gpu::Uuid, std::optional<uint64_t>>& most_bytes,
           std::optional<Time> ends_by);

 private:
  struct Tenant {
    uint64_t bytes = 0;
    Mode mode = Mode::kTimeslice;
    std::optional<Time> ends_by;
  };
  struct Gpu {
    const GpuSnapshot* snapshot = nullptr;
    std::vector<Tenant> tenants;  // who ends first stands first
  };
  void Insert(const gpu::Uuid& uuid, const Tenant& tenant);
  std::optional<Time> EarliestOn(const Gpu& gpu, Mode mode, uint64_t bytes) const;

  std::map<gpu::Uuid, Gpu> gpus_;
  Time now_;
};

}  // namespace gpumux::core
