// SPDX-License-Identifier: Apache-2.0
//
// What of MPS decides who may start, and what its clients are told. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/index.h"
#include "gpu/uuid.h"

namespace gpumux::core {

// One GPU, as far as clients of MPS are concerned.
struct MpsSnapshot {
  std::vector<gpu::Uuid> domain;  // all GPUs of the control daemon whose tenants this GPU has; empty: none
  unsigned clients = 0;           // slots that tenants have taken
  unsigned most_clients = 48;
  uint64_t server_bytes = 0;  // that a server will take which is not there yet
  std::string not_now;        // why nobody new may start just now; empty: they may
};

// Clients that one GPU can have, by the driver: 48, and 60 from branch 590 on.
// 0: nothing is known of `driver_version`, and 48 is meant.
unsigned MpsClientsOf(std::string_view driver_version);

// Of `sms`, those that a client at `ratio` of them gets: rounded down to an even
// number, and at least 8 (measured on an H200).
unsigned MpsSms(unsigned sms, double ratio);
// The percentage that stands for `ratio` in CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.
std::string MpsPercentage(double ratio);

struct MpsLimit {
  gpu::Uuid gpu;
  uint64_t bytes = 0;  // of one process
};
// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: by UUID, in whole MiB, rounded up, so that
// it never refuses what was promised. Empty: no limits.
std::string MpsLimits(const std::vector<MpsLimit>& limits);
// The part of a tenant's limit that one of its processes may have.
uint64_t LimitOfProcess(uint64_t limit_bytes, unsigned processes);

// Nullopt: `processes` further clients may start there.
std::optional<std::string> WhyNotMps(unsigned processes, const MpsSnapshot& gpu, const gpu::Index& index);

}  // namespace gpumux::core
