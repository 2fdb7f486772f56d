// SPDX-License-Identifier: Apache-2.0
//
// May this tenant start now, and where? A pure function of the request, of a
// snapshot of the GPUs and of the quotas that bind its owner.
#pragma once

#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/context_cost.h"
#include "core/mps.h"
#include "core/promise.h"
#include "core/quota.h"
#include "gpu/index.h"

namespace gpumux::core {

// Of one GPU: what its tenants of mode turns are guaranteed of its time.
struct TurnsSnapshot {
  double min_ratio = 0;                 // sum
  std::vector<std::string> names = {};  // of those that have a part of it, for people
};

// One GPU as the daemon sees it now.
struct GpuSnapshot {
  gpu::Uuid uuid;
  gpu::Index index;
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t reserve_bytes = 0;
  uint64_t guaranteed_bytes = 0;
  uint64_t burst_bytes = 0;  // used by tenants beyond their guarantees
  uint64_t unmanaged_bytes = 0;
  std::vector<std::string> strangers;  // who they are: "pid 812 (python3 of bob)"
  uint64_t unexplained_bytes = 0;
  uint64_t promisable_bytes = 0;
  std::optional<Mode> mode;  // nullopt: no tenant
  size_t tenants = 0;
  MpsSnapshot mps = {};
  TurnsSnapshot turns = {};
  ContextCost context;
  // Why no promise is made on this GPU at all: another daemon owns its ledger,
  // or it does not answer. Then `closed_error` says so; else its message is empty.
  Error closed_error;
  bool opens_soon = false;  // closed, and waiting mends it
  bool absent = false;      // an instance that is no more, and may come again: none of the machine's
  // Modes that its settings forbid, and how to change that.
  std::map<Mode, Error> forbidden_modes;

  bool Closed() const { return !closed_error.message.empty(); }
  // What the GPU could promise if it were empty.
  uint64_t UsableBytes() const { return total_bytes > reserve_bytes ? total_bytes - reserve_bytes : 0; }
  // What others than tenants hold of them.
  uint64_t OutsideBytes() const {
    return unmanaged_bytes + unexplained_bytes < unmanaged_bytes ? UINT64_MAX
                                                                 : unmanaged_bytes + unexplained_bytes;
  }
};

// What a request needs to start, on `gpu_count` of these GPUs.
struct Needs {
  Mode mode = Mode::kTimeslice;
  size_t gpu_count = 1;
  std::map<gpu::Uuid, uint64_t> bytes;  // by every GPU that may serve it
  double share_min = 0;                 // of its time
};

struct Wait {
  std::string reason;
  // The GPUs that this request may be given once it fits: those behind it in
  // the queue leave them alone, so that it cannot be overtaken for ever. None
  // while it waits for its owner's own tenants to end.
  std::set<gpu::Uuid> wants;
  bool for_quota = false;
  Needs needs = {};
};

struct Rules {
  Fill fill = Fill::kPack;
  std::vector<Bound> bounds = {};  // quotas of the request's owner
};

using Decision = std::variant<Placement, Wait, Error>;

// `taken` are GPUs that requests ahead in the queue wait for: they count as not
// fitting now.
//
// Refused for good (Error): kNotFound for a GPU that is not here, kUnsupported
// for what no mode here keeps, kDenied for what no GPU here could ever promise,
// for less than a context needs, for more than a quota allows at all, and for
// GPUs of another daemon.
Decision Admit(const Request& request, const std::vector<GpuSnapshot>& gpus, const std::set<gpu::Uuid>& taken,
               const Rules& rules = {});

// Errors that no waiting mends, on one GPU.
std::optional<Error> NeverHere(const Request& request, Mode mode, const GpuSnapshot& gpu);

// What a request that shares a GPU is promised there.
Share ShareOn(const Request& request, const GpuSnapshot& gpu);

// Where the bytes of a GPU are: "7.4 GiB can be promised (61.2 of 139.8 GiB
// guaranteed, 0.9 GiB held by unmanaged pid 812)".
std::string DescribeRoom(const GpuSnapshot& gpu);

}  // namespace gpumux::core
