// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "core/mig/geometry.h"
#include "gpu/nvml_mig.h"

namespace gpumux::daemon {

// A partitioned GPU in memory, whose calls that change something fail as ordered.
class FakeMig final : public gpu::Mig {
 public:
  explicit FakeMig(const gpu::MigModel& model) : model_(model) {}

  struct Gi {
    core::mig::Placed placed;
    std::map<uint32_t, uint32_t> compute;  // id, profile
  };
  // The calls from this one on (from 1) that change something fail, as many as `failing`. 0: none.
  unsigned fail_at = 0, failing = 1;
  unsigned changes = 0;

  const std::map<uint32_t, Gi>& instances() const { return instances_; }

  Result<std::optional<gpu::MigModes>> Modes(const gpu::Uuid&) override {
    return std::optional(gpu::MigModes{.current = true, .pending = true});
  }
  Result<std::vector<gpu::MigInstance>> Instances(const gpu::Uuid&) override {
    std::vector<gpu::MigInstance> all;
    for (const auto& [id, each] : instances_)
      all.push_back({id, each.placed.profile, {each.placed.start, SlicesOf(each.placed.profile)}});
    return all;
  }
  Result<gpu::MigInstance> Create(const gpu::Uuid&, uint32_t profile,
                                  const std::optional<gpu::MigPlacement>& placement) override {
    if (Status fine = Changes(); !fine) return tl::unexpected(fine.error());
    const core::mig::Placed placed{placement->start, profile};
    if (Status can = core::mig::CanCreate(model_, Layout(), placed); !can) return tl::unexpected(can.error());
    const uint32_t id = next_++;
    instances_[id] = {placed, {}};
    return gpu::MigInstance{id, profile, *placement};
  }
  Status Destroy(const gpu::Uuid&, uint32_t instance) override {
    if (Status fine = Changes(); !fine) return fine;
    if (!instances_[instance].compute.empty()) return Fail(Code::kConflict, "it has compute instances");
    instances_.erase(instance);
    return {};
  }
  Result<std::vector<gpu::MigComputeProfile>> ComputeProfiles(const gpu::Uuid&, uint32_t instance) override {
    const gpu::MigProfile& profile = core::mig::ProfileOf(model_, instances_[instance].placed.profile);
    std::vector<gpu::MigComputeProfile> all;
    for (const uint32_t size : core::mig::ComputeInstanceSizes(profile.compute_slices))
      all.push_back({size, size, profile.compute_slices / size, 0});
    return all;
  }
  Result<std::vector<gpu::MigInstance>> ComputeInstances(const gpu::Uuid&, uint32_t instance) override {
    std::vector<gpu::MigInstance> all;
    for (const auto& [id, profile] : instances_[instance].compute) all.push_back({id, profile, {}});
    return all;
  }
  Result<gpu::MigInstance> CreateCompute(const gpu::Uuid&, uint32_t instance, uint32_t profile) override {
    if (Status fine = Changes(); !fine) return tl::unexpected(fine.error());
    auto& compute = instances_[instance].compute;
    uint32_t id = 0;
    while (compute.contains(id)) ++id;
    compute[id] = profile;
    return gpu::MigInstance{id, profile, {}};
  }
  Status DestroyCompute(const gpu::Uuid&, uint32_t instance, uint32_t compute) override {
    if (Status fine = Changes(); !fine) return fine;
    instances_[instance].compute.erase(compute);
    return {};
  }

 private:
  Status Changes() {
    ++changes;
    if (fail_at > 0 && changes >= fail_at && changes < fail_at + failing)
      return Fail(Code::kInternal, "the driver failed as ordered");
    return {};
  }
  uint32_t SlicesOf(uint32_t profile) const {
    return core::mig::ProfileOf(model_, profile).memory_slices.value_or(0);
  }
  core::mig::Layout Layout() const {
    core::mig::Layout layout;
    for (const auto& [id, each] : instances_) layout.push_back(each.placed);
    return layout;
  }

  const gpu::MigModel& model_;
  std::map<uint32_t, Gi> instances_;
  uint32_t next_ = 1;
};

}  // namespace gpumux::daemon
