// SPDX-License-Identifier: Apache-2.0
#include "cli/mig/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/mig/request.h"
#include "cli/terminal.h"
#include "gpu/mig_reading.h"
#include "gpu/nvml_mig.h"
#include "gpu/source.h"

namespace gpumux::cli {
namespace {

using core::mig::GpuState;
using core::mig::Present;

// Who uses an instance, as far as may be seen.
std::vector<std::string> UsersOf(gpu::Mig& mig, const gpu::Uuid& uuid, uint32_t instance) {
  std::vector<std::string> users;
  const auto devices = mig.Devices(uuid);
  if (!devices) return users;
  for (const gpu::MigDevice& device : *devices) {
    if (device.gpu_instance != instance) continue;
    const auto processes = mig.Processes(uuid, device.gpu_instance, device.compute_instance);
    if (!processes) continue;
    for (const gpu::ProcessUse& process : *processes) users.push_back(fmt::format("pid {}", process.pid));
  }
  return users;
}

// Of one instance, in compute slices; empty: it has none, or the driver does not tell.
std::vector<uint32_t> DivisionOf(gpu::Mig& mig, const gpu::Uuid& uuid, uint32_t instance) {
  std::vector<uint32_t> sizes;
  const auto parts = mig.ComputeInstances(uuid, instance);
  if (!parts) return sizes;
  for (const gpu::MigInstance& part : *parts) sizes.push_back(part.placement.size);
  return sizes;
}

struct OnGpu {
  std::vector<Present> present;
  MigDivisions divided;
};
Result<OnGpu> PresentOn(gpu::Mig& mig, const gpu::Uuid& uuid) {
  const auto instances = mig.Instances(uuid);
  if (!instances) return tl::unexpected(instances.error());
  OnGpu on;
  for (const gpu::MigInstance& instance : *instances) {
    const core::mig::Placed placed{instance.placement.start, instance.profile};
    on.present.push_back({placed, UsersOf(mig, uuid, instance.id)});
    if (auto sizes = DivisionOf(mig, uuid, instance.id); !sizes.empty())
      on.divided[placed] = std::move(sizes);
  }
  return on;
}

// One GPU of a machine; false: it cannot be planned for, and `note` says why.
Result<bool> Add(MigGpus& gpus, gpu::Nvml& nvml, const gpu::Device& device) {
  const std::string name = fmt::format("GPU {}", device.index.Label());
  const auto table = gpu::FindMigModel(device.name);
  const auto modes = nvml.mig().Modes(device.uuid);
  const bool on = modes && *modes && (*modes)->current;
  GpuState gpu{name, table ? *table : nullptr};
  MigDivisions divided;
  if (on) {
    auto model = gpu::ReadMigModel(nvml, device);
    if (!model) return tl::unexpected(model.error());
    auto there = PresentOn(nvml.mig(), device.uuid);
    if (!there) return tl::unexpected(there.error());
    gpus.read.push_back(std::make_unique<gpu::MigModel>(std::move(*model)));
    gpu.model = gpus.read.back().get();
    gpu.present = std::move(there->present);
    divided = std::move(there->divided);
  } else if (!gpu.model) {
    gpus.note += fmt::format("{} is left out: {}\n", name, table.error().message);
    return false;
  } else {
    gpus.note += fmt::format(
        "MIG is off on {}: its driver tells no profiles then, and these are the table's.\n", name);
  }
  gpus.gpus.push_back(std::move(gpu));
  gpus.uuids.push_back(device.uuid.ToString());
  gpus.indices.push_back(device.index.gpu);
  gpus.enabled.push_back(on);
  gpus.divided.push_back(std::move(divided));
  return true;
}

}  // namespace

Result<MigGpus> MigGpusOfMachine(gpu::Nvml& nvml, bool simulated) {
  MigGpus gpus;
  gpus.simulated = simulated;
  for (const gpu::Device& device : nvml.Devices()) {
    if (const auto added = Add(gpus, nvml, device); !added) return tl::unexpected(added.error());
  }
  if (gpus.gpus.empty())
    return Fail(Code::kUnsupported,
                "no GPU of this machine has MIG" +
                    (gpus.note.empty() ? "" : ": " + gpus.note.substr(0, gpus.note.find('\n'))),
                "name others with --gpu");
  return gpus;
}

Result<MigGpus> MigGpusOf(const ParsedCommandLine& line) {
  if (const auto text = line.Value("--gpu")) {
    auto named = ParseMigGpus(*text);
    if (!named) return tl::unexpected(named.error());
    MigGpus gpus;
    gpus.gpus = std::move(*named);
    const size_t count = gpus.gpus.size();
    gpus.uuids.resize(count);
    gpus.divided.resize(count);
    gpus.enabled.resize(count, true);
    gpus.indices.resize(count);
    std::iota(gpus.indices.begin(), gpus.indices.end(), 0u);
    return gpus;
  }
  return MigGpusOfThisMachine();
}

Result<MigGpus> MigGpusOfThisMachine() {
  const auto source = gpu::FindGpuSource();
  if (!source) return tl::unexpected(source.error());
  const auto nvml = gpu::Nvml::Open(*source);
  if (!nvml) return tl::unexpected(nvml.error());
  return MigGpusOfMachine(**nvml, source->simulated);
}

}  // namespace gpumux::cli
