// SPDX-License-Identifier: Apache-2.0
#include "core/mig/cost.h"

#include <algorithm>

namespace gpumux::core::mig {
namespace {

// NVIDIA's MIG User Guide and its page of CUDA devices; the one of the checkpoint by its maintainer.
constexpr Limit kLimits[] = {
    {"peer-to-peer", "no peer-to-peer access and no CUDA IPC between GPU instances"},
    {"nccl", "no NCCL between instances: a job of several GPUs needs GPUs with MIG off"},
    {"one-instance", "a program sees one instance (before driver R570), or one of each GPU instance"},
    {"graphics", "no graphics, except on instances with +gfx"},
    {"checkpoint", "no CUDA checkpoint: nothing can be suspended to host memory"},
    {"utilization",
     "NVML tells no utilization, neither of an instance nor of a process; DCGM does, of instances"},
    {"shared", "power, clocks and the bus are still shared"},
};

void Add(std::optional<uint64_t>& sum, std::optional<uint64_t> part) {
  sum = sum && part ? std::optional(*sum + *part) : std::nullopt;
}

}  // namespace

Parts& Parts::operator+=(const Parts& other) {
  Add(sms, other.sms);
  Add(whole_sms, other.whole_sms);
  Add(bytes, other.bytes);
  Add(whole_bytes, other.whole_bytes);
  return *this;
}

Parts PartsOf(const gpu::MigModel& model, const Layout& layout) {
  Parts parts{0, model.whole_sms, 0, std::nullopt};
  for (const Placed& instance : layout) {
    const gpu::MigProfile* profile = model.FindProfile(instance.profile);
    Add(parts.sms, profile ? profile->sms : std::nullopt);
    Add(parts.bytes, profile ? profile->bytes : std::nullopt);
  }
  for (const gpu::MigProfile& profile : model.profiles) {
    if (profile.memory_slices && profile.memory_slices == model.memory_slices && profile.bytes)
      parts.whole_bytes = std::max(parts.whole_bytes.value_or(0), *profile.bytes);
  }
  return parts;
}

std::span<const Limit> LimitsOfMig() { return kLimits; }

}  // namespace gpumux::core::mig
