// SPDX-License-Identifier: Apache-2.0
//
// What a tenant asks for, and what it is promised.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "core/policy.h"
#include "gpu/uuid.h"

namespace gpumux::core {

// How a GPU, or an instance of one that is partitioned, is shared. It has one mode at a time, and none
// while it is empty. kMig: an instance for one tenant alone.
enum class Mode { kExclusive, kTimeslice, kTurns, kMps, kMig };
inline constexpr Mode kModes[] = {Mode::kExclusive, Mode::kTimeslice, Mode::kTurns, Mode::kMps, Mode::kMig};
std::string_view Name(Mode mode);
std::optional<Mode> FindMode(std::string_view name);
// Several tenants may have the GPU in this mode.
constexpr bool Shares(Mode mode) { return mode != Mode::kExclusive && mode != Mode::kMig; }

enum class Isolation {
  kNone,   // a neighbour's GPU fault may end this tenant
  kFault,  // it may not
  kFull,   // nor may a neighbour's load slow it down
};
std::string_view Name(Isolation isolation);

// Whose work goes first on a GPU: kernels of the best-effort are held back while a
// latency-critical tenant works (docs/design/gate.md). Not the queue's priority.
enum class Urgency { kNormal, kLatency, kBestEffort };
std::string_view Name(Urgency urgency);
std::optional<Urgency> FindUrgency(std::string_view name);

// Requests that no GPU state could make sensible are turned away where they are
// parsed; what is here is well-formed.
struct Request {
  uint64_t id = 0;  // ascending in order of arrival
  std::string name;
  std::optional<MemorySize> mem;        // nullopt: no guarantee
  std::optional<MemorySize> mem_limit;  // nullopt: same as `mem`
  unsigned gpu_count = 1;               // of any GPUs; if `gpu_list` is empty
  std::vector<std::string> gpu_list;    // exactly these: an index, a UUID or the beginning of one
  std::optional<Mode> mode;             // nullopt: auto
  Isolation isolation = Isolation::kFault;
  std::optional<Fill> fill;  // nullopt: as the policy says
  // Above 0 and up to 1. Of mode turns: the least of a GPU's time, where it wants it.
  std::optional<double> share_min;
  // Of mode turns: the most of a GPU's time. Of mode mps: the most of its multiprocessors.
  std::optional<double> share_ceiling;
  // Of mode mps alone: the processes that may be clients at once.
  unsigned processes = 1;
  Urgency urgency = Urgency::kNormal;
  // It is stopped after so long.
  std::optional<std::chrono::nanoseconds> time_limit;
  // Whose it is, by the system's databases: the policy's quotas go by these.
  std::string user;
  std::vector<std::string> groups;
  int priority = 0;  // by the policy; a higher one goes first
};

// What a tenant that is stopped has until SIGKILL, unless who stops it says otherwise.
inline constexpr std::chrono::nanoseconds kUsualGrace = std::chrono::seconds(10);
// From SIGKILL until the bytes are back: the driver's own work.
inline constexpr std::chrono::nanoseconds kReturnTakes = std::chrono::seconds(5);
// From the end of a time limit until the bytes are back.
inline constexpr std::chrono::nanoseconds kEndingTakes = kUsualGrace + kReturnTakes;

// A tenant's part of one GPU.
struct Share {
  gpu::Uuid gpu;
  uint64_t guaranteed_bytes = 0;
  std::optional<uint64_t> limit_bytes;  // nullopt: whatever is promisable
};

struct Placement {
  Mode mode = Mode::kTimeslice;
  std::string mode_reason;  // one line, for the user
  std::vector<Share> shares;
};

// Bytes on a GPU of `usable_bytes`: a ratio is of what can be promised on an
// empty GPU, not of the physical size.
uint64_t BytesOf(const MemorySize& size, uint64_t usable_bytes);

}  // namespace gpumux::core
