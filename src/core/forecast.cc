// SPDX-License-Identifier: Apache-2.0
#include "core/forecast.h"

#include <algorithm>

namespace gpumux::core {

namespace {

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }
uint64_t Plus(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

bool EndsBefore(const std::optional<Forecast::Time>& a, const std::optional<Forecast::Time>& b) {
  return a && (!b || *a < *b);
}

}  // namespace

Forecast::Forecast(const std::vector<GpuSnapshot>& gpus, const std::vector<Running>& running, Time now,
                   Charge charge)
    : now_(now) {
  for (const GpuSnapshot& gpu : gpus) gpus_[gpu.uuid].snapshot = &gpu;
  for (const Running& tenant : running) {
    // One that is still there after its time is one of which nobody knows when it ends.
    const auto ends_by = tenant.ends_by && *tenant.ends_by > now ? tenant.ends_by : std::nullopt;
    for (const Running::On& on : tenant.on) {
      const uint64_t bytes = charge == Charge::kAsNow
                                 ? on.charged_bytes
                                 : std::max(on.charged_bytes, on.limit_bytes.value_or(UINT64_MAX));
      Insert(on.gpu, {bytes, tenant.mode, ends_by});
    }
  }
}

void Forecast::Insert(const gpu::Uuid& uuid, const Tenant& tenant) {
  const auto gpu = gpus_.find(uuid);
  if (gpu == gpus_.end()) return;
  auto& tenants = gpu->second.tenants;
  const auto at = std::upper_bound(tenants.begin(), tenants.end(), tenant, [](const auto& a, const auto& b) {
    return EndsBefore(a.ends_by, b.ends_by);
  });
  tenants.insert(at, tenant);
}

void Forecast::Add(const Needs& needs, const std::map<gpu::Uuid, std::optional<uint64_t>>& most_bytes,
                   std::optional<Time> ends_by) {
  for (const auto& [uuid, bytes] : needs.bytes) {
    const auto most = most_bytes.find(uuid);
    const uint64_t limit = most == most_bytes.end() ? UINT64_MAX : most->second.value_or(UINT64_MAX);
    Insert(uuid, {std::max(bytes, limit), needs.mode, ends_by});
  }
}

// Tenants only leave, so once it fits it goes on fitting.
std::optional<Forecast::Time> Forecast::EarliestOn(const Gpu& gpu, Mode mode, uint64_t bytes) const {
  if (!gpu.snapshot || gpu.snapshot->Closed()) return std::nullopt;
  const uint64_t room = Minus(gpu.snapshot->UsableBytes(), gpu.snapshot->OutsideBytes());
  uint64_t others = 0;
  std::optional<Time> earliest = now_;
  for (auto it = gpu.tenants.rbegin(); it != gpu.tenants.rend(); ++it) {
    others = Plus(others, it->bytes);
    const bool beside = Shares(mode) && it->mode == mode;
    if (beside && bytes <= Minus(room, others)) continue;
    // Not beside this one nor those that end after it.
    earliest = it->ends_by;
    break;
  }
  return bytes <= room ? earliest : std::nullopt;
}

std::optional<Forecast::Time> Forecast::Earliest(const Needs& needs,
                                                 const std::map<gpu::Uuid, Time>& not_before) const {
  // It may wait for a client slot or a control daemon as well, which no limit of time tells.
  if (needs.mode == Mode::kMps) return std::nullopt;
  // Nor does one tell of parts of the GPU's time.
  if (needs.share_min > 0) return std::nullopt;
  std::vector<Time> times;
  for (const auto& [uuid, bytes] : needs.bytes) {
    const auto gpu = gpus_.find(uuid);
    if (gpu == gpus_.end()) continue;
    auto time = EarliestOn(gpu->second, needs.mode, bytes);
    if (!time) continue;
    const auto floor = not_before.find(uuid);
    if (floor != not_before.end()) time = std::max(*time, floor->second);
    times.push_back(*time);
  }
  if (needs.gpu_count == 0 || times.size() < needs.gpu_count) return std::nullopt;
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(needs.gpu_count) - 1, times.end());
  return times[needs.gpu_count - 1];
}

}  // namespace gpumux::core
