// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "sim/gpu_spec.h"

namespace gpumux::sim {

// What MPS does with figures, as measured on an H200 with driver 580.159.04.

// The SMs that a client may use at `percent` of `sms`: rounded down to an even
// number, and at least 8.
constexpr int MpsSms(int sms, double percent) {
  if (percent >= 100) return sms;
  const int floor = static_cast<int>(sms * percent / 100 + 1e-9);
  return std::min(sms, std::max(floor / 2 * 2, 8));
}

// A client's context with so many SMs.
struct ContextCost {
  uint64_t own;
  uint64_t device;
};
constexpr ContextCost MpsContext(const GpuSpec& spec, int sms) {
  const uint64_t all = spec.context_device - spec.mps_context_saving;
  const uint64_t base = std::min(spec.mps_context_base, all / 2);
  const uint64_t device = base + (all - base) * static_cast<uint64_t>(sms) / static_cast<uint64_t>(spec.sms);
  return {device - spec.mps_context_apart, device};
}

// Clients that may have a context on one GPU: 48 up to CUDA 13.0, 60 with the
// driver branches after it (R590 and later).
uint32_t MpsClients(std::string_view driver_version);

}  // namespace gpumux::sim
