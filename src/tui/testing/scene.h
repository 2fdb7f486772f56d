// SPDX-License-Identifier: Apache-2.0
//
// Samples for tests: a GPU with two tenants that take turns, one that waits and a
// process outside gpumux.
#pragma once

#include "base/units.h"
#include "tui/model.h"

namespace gpumux::tui::testing {

inline constexpr const char* kGpu = "GPU-00000000-0000-0000-0000-000000000001";

inline TenantSample TenantOn(const std::string& name, uint64_t used_gib, uint64_t guaranteed_gib,
                             const char* mode = "turns") {
  TenantSample tenant;
  tenant.id = "t-" + name;
  tenant.name = name;
  tenant.owner = "ann";
  tenant.state = "running";
  tenant.mode = mode;
  tenant.priority = "normal";
  tenant.isolation = "fault";
  tenant.command = "python3 " + name + ".py";
  tenant.started_at = "2026-11-30T12:00:00Z";
  tenant.used = tenant.peak = used_gib * kGiB;
  tenant.guaranteed = tenant.limit = guaranteed_gib * kGiB;
  tenant.enforced = "guard";
  tenant.refusals = 0;
  tenant.launches = 0;
  tenant.waited_seconds = 0;
  TenantGpuSample gpu;
  gpu.uuid = kGpu;
  gpu.label = "0";
  gpu.used = gpu.peak = tenant.used;
  gpu.guaranteed = gpu.limit = tenant.limit;
  tenant.gpus.push_back(gpu);
  MemberSample member;
  member.pid = 4711;
  member.name = "python3";
  member.guard = "in force";
  tenant.members.push_back(member);
  return tenant;
}

inline TenantSample Waiting(const std::string& name, uint64_t gib) {
  TenantSample tenant = TenantOn(name, 0, gib, "");
  tenant.state = "waiting";
  tenant.gpus.clear();
  tenant.members.clear();
  tenant.enforced.clear();
  tenant.launches.reset();
  tenant.waiting =
      WaitingSample{1, "needs " + std::to_string(gib) + ".0 GiB, 8.0 GiB can be promised", "", ""};
  return tenant;
}

inline void TakesTurns(TenantSample& tenant, double gpu_seconds) {
  tenant.turns = TurnsSample{"holds", gpu_seconds, 0.5, 10, 0, 0};
}

inline Sample Machine(std::vector<TenantSample> tenants) {
  Sample sample;
  sample.daemon_pid = 77;
  sample.driver_version = "580.159.04";
  GpuSample gpu;
  gpu.uuid = kGpu;
  gpu.label = "0";
  gpu.name = "NVIDIA H200";
  gpu.total = 100 * kGiB;
  gpu.reserve = 2 * kGiB;
  gpu.busy_ratio = 0.37;
  gpu.unmanaged = gpu.unexplained = 0;
  gpu.used = gpu.guaranteed = 0;
  for (const TenantSample& tenant : tenants) {
    if (tenant.gpus.empty()) continue;
    gpu.mode = tenant.mode;
    *gpu.used += tenant.used.value_or(0);
    *gpu.guaranteed += tenant.guaranteed.value_or(0);
  }
  gpu.promisable = 98 * kGiB - *gpu.guaranteed;
  sample.gpus.push_back(gpu);
  sample.tenants = std::move(tenants);
  return sample;
}

inline void AddStranger(Sample& sample, int64_t pid, uint64_t gib) {
  GpuSample& gpu = sample.gpus[0];
  gpu.strangers.push_back({pid, "stress", "bob", "", gib * kGiB});
  *gpu.unmanaged += gib * kGiB;
  *gpu.promisable -= gib * kGiB;
}

}  // namespace gpumux::tui::testing
