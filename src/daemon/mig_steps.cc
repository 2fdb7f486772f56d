// SPDX-License-Identifier: Apache-2.0
#include "daemon/mig_steps.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpumux::daemon {

namespace {

using core::mig::Placed;
using core::mig::Step;

// The same error, with what the failed step left behind.
tl::unexpected<Error> AndLeft(Error error, const std::string& left) {
  error.message += "; left behind: " + left;
  return tl::unexpected(std::move(error));
}

}  // namespace

core::mig::Layout LayoutOf(const std::vector<MigPart>& parts) {
  core::mig::Layout layout;
  for (const MigPart& part : parts) layout.push_back(part.instance);
  std::ranges::sort(layout);
  return layout;
}

Result<std::vector<MigPart>> MigSteps::Look() const {
  const auto instances = mig_.Instances(gpu_);
  if (!instances) return tl::unexpected(instances.error());
  std::vector<MigPart> parts;
  for (const gpu::MigInstance& each : *instances) {
    MigPart part{{each.placement.start, each.profile}, {}};
    auto compute = mig_.ComputeInstances(gpu_, each.id);
    if (!compute) return tl::unexpected(compute.error());
    std::ranges::sort(*compute, {}, [](const gpu::MigInstance& one) { return one.id; });
    for (const gpu::MigInstance& one : *compute) part.compute.push_back(one.profile);
    parts.push_back(std::move(part));
  }
  std::ranges::sort(parts, {}, &MigPart::instance);
  return parts;
}

void MigSteps::Remember(const std::vector<MigPart>& parts) {
  for (const MigPart& part : parts) compute_of_[part.instance] = part.compute;
}

Result<uint32_t> MigSteps::IdOf(Placed instance) const {
  const auto instances = mig_.Instances(gpu_);
  if (!instances) return tl::unexpected(instances.error());
  for (const gpu::MigInstance& each : *instances) {
    if (each.profile == instance.profile && each.placement.start == instance.start) return each.id;
  }
  return Fail(Code::kNotFound, fmt::format("there is no {} any more", core::mig::Name(model_, instance)));
}

Status MigSteps::MakeCompute(uint32_t instance, const std::vector<uint32_t>& profiles) {
  for (const uint32_t profile : profiles) {
    if (const auto made = mig_.CreateCompute(gpu_, instance, profile); !made)
      return tl::unexpected(made.error());
  }
  return {};
}

Status MigSteps::Create(Placed instance) {
  const gpu::MigProfile* profile = model_.FindProfile(instance.profile);
  if (!profile) return Fail(Code::kInvalid, fmt::format("there is no profile {}", instance.profile));
  const auto made = mig_.Create(gpu_, instance.profile,
                                gpu::MigPlacement{instance.start, profile->memory_slices.value_or(0)});
  if (!made) return tl::unexpected(made.error());
  std::vector<uint32_t> compute;
  Status divided;
  if (const auto known = compute_of_.find(instance); known != compute_of_.end()) {
    compute = known->second;
  } else if (const auto sizes = mig_.ComputeProfiles(gpu_, made->id); sizes && !sizes->empty()) {
    // One of all of it, as people and other tools make it.
    compute.push_back(std::ranges::max(*sizes, {}, &gpu::MigComputeProfile::slices).id);
  } else {
    divided = sizes ? Status(Fail(Code::kInternal, "the driver knows no compute instance for it"))
                    : Status(tl::unexpected(sizes.error()));
  }
  if (divided) divided = MakeCompute(made->id, compute);
  if (divided) return {};
  if (const Status gone = Destroy(instance); !gone)
    return AndLeft(divided.error(), fmt::format("{}, of no use to programs ({})",
                                                core::mig::Name(model_, instance), gone.error().message));
  return divided;
}

Status MigSteps::Destroy(Placed instance) {
  const auto id = IdOf(instance);
  if (!id) return tl::unexpected(id.error());
  const auto compute = mig_.ComputeInstances(gpu_, *id);
  if (!compute) return tl::unexpected(compute.error());
  Status destroyed;
  std::vector<uint32_t> gone;
  for (const gpu::MigInstance& each : *compute) {
    destroyed = mig_.DestroyCompute(gpu_, *id, each.id);
    if (!destroyed) break;
    gone.push_back(each.profile);
  }
  if (destroyed) destroyed = mig_.Destroy(gpu_, *id);
  if (destroyed) return {};
  if (const Status back = MakeCompute(*id, gone); !back)
    return AndLeft(destroyed.error(), fmt::format("{} without all of its compute instances ({})",
                                                  core::mig::Name(model_, instance), back.error().message));
  return destroyed;
}

Status MigSteps::Do(const Step& step) {
  Status done = step.what == Step::What::kCreate ? Create(step.instance) : Destroy(step.instance);
  if (done) return done;
  Error error = done.error();
  error.message = fmt::format("{}: {}", core::mig::ToString(model_, step), error.message);
  return tl::unexpected(std::move(error));
}

std::vector<std::string> MigSteps::PutBack(const std::vector<Step>& done) {
  std::vector<std::string> left;
  for (const Step& step : core::mig::Undo(done)) {
    if (const Status back = Do(step); !back) left.push_back(back.error().message);
  }
  return left;
}

}  // namespace gpumux::daemon
