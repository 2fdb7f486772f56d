// SPDX-License-Identifier: Apache-2.0
//
// May the promise of a tenant that runs be changed?
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/admission.h"

namespace gpumux::core {

struct Change {
  std::optional<MemorySize> mem;        // of each GPU: guarantee
  std::optional<MemorySize> mem_limit;  // nullopt: same as `mem`
  std::optional<std::chrono::nanoseconds> time_limit;
  // A limit below what is used is taken: the tenant gets no more until it is below.
  bool as_it_frees = false;
};

// The tenant as it is now. `shares` and `used_bytes` belong together.
struct Changeable {
  std::string name;
  Mode mode = Mode::kTimeslice;
  std::vector<Share> shares;
  std::vector<uint64_t> used_bytes;
  std::optional<std::chrono::nanoseconds> time_limit;
  std::chrono::nanoseconds ran{};
};

// Its new shares. `kept` are GPUs that others wait for, with whom: nothing that
// they may get is given away, and what they were told of the time stays true.
// kConflict: not now. kDenied: never, or for a quota. kUnsupported: an exclusive
// tenant has all there is.
Result<std::vector<Share>> JudgeChange(const Change& change, const Changeable& tenant,
                                       const std::vector<GpuSnapshot>& gpus, const std::vector<Bound>& bounds,
                                       const std::map<gpu::Uuid, std::string>& kept);

}  // namespace gpumux::core
