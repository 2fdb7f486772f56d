// SPDX-License-Identifier: Apache-2.0
#include "gpu/nvml_instances.h"

#include <algorithm>
#include <utility>

namespace gpumux::gpu {

namespace {

// "NVIDIA H200 MIG 1g.18gb": what drivers call it.
std::string ProfileOf(const std::string& name) {
  constexpr std::string_view kMark = "MIG ";
  const size_t at = name.rfind(kMark);
  if (at == std::string::npos) return {};
  const std::string rest = name.substr(at + kMark.size());
  return rest.substr(0, rest.find(' '));
}

}  // namespace

Result<std::unique_ptr<Nvml>> OpenNvmlWithInstances(const GpuSource& source) {
  auto nvml = Nvml::Open(source);
  if (!nvml) return tl::unexpected(nvml.error());
  return std::make_unique<NvmlWithInstances>(std::move(*nvml));
}

NvmlWithInstances::NvmlWithInstances(std::unique_ptr<Nvml> nvml) : nvml_(std::move(nvml)) { Look(); }

Status NvmlWithInstances::Restart() {
  const Status started = nvml_->Restart();
  Look();
  return started;
}

bool NvmlWithInstances::Look() {
  std::vector<Device> devices = nvml_->Devices();
  std::map<Uuid, InstanceOf> instances;
  std::set<Uuid> partitioned;
  for (const Device& gpu : nvml_->Devices()) {
    const auto modes = nvml_->mig().Modes(gpu.uuid);
    const bool on = modes && modes->value_or(MigModes{}).current;
    const auto found = on ? nvml_->mig().Devices(gpu.uuid) : Result<std::vector<MigDevice>>();
    if (!modes || !found) {
      // An error is no news: what was known of this GPU stays so. Who never told has nothing that could stay.
      if (!IsPartitioned(gpu.uuid)) continue;
      partitioned.insert(gpu.uuid);
      for (const Device& known : devices_) {
        if (!known.instance || known.instance->gpu != gpu.uuid) continue;
        devices.push_back(known);
        instances[known.uuid] = *known.instance;
      }
      continue;
    }
    if (!on) continue;
    partitioned.insert(gpu.uuid);
    for (const MigDevice& each : *found) {
      const auto uuid = ParseUuid(each.uuid);
      if (!uuid) continue;
      const InstanceOf of{.gpu = gpu.uuid,
                          .gpu_instance = each.gpu_instance,
                          .compute_instance = each.compute_instance,
                          .profile = ProfileOf(each.name),
                          .sms = each.sms};
      devices.push_back({*uuid, {gpu.index.gpu, each.index}, each.name, gpu.pci_bus_id, of});
      instances[*uuid] = of;
    }
  }
  const auto same = [](const Device& a, const Device& b) {
    return a.uuid == b.uuid && a.index == b.index && a.instance == b.instance;
  };
  const bool changed = partitioned != partitioned_ ||
                       !std::equal(devices.begin(), devices.end(), devices_.begin(), devices_.end(), same);
  devices_ = std::move(devices);
  partitioned_ = std::move(partitioned);
  instances_ = std::move(instances);
  return changed;
}

bool NvmlWithInstances::IsPartitioned(const Uuid& gpu) const { return partitioned_.contains(gpu); }

const InstanceOf* NvmlWithInstances::Find(const Uuid& device) const {
  const auto found = instances_.find(device);
  return found == instances_.end() ? nullptr : &found->second;
}

Uuid NvmlWithInstances::GpuOf(const Uuid& device) const {
  const InstanceOf* instance = Find(device);
  return instance ? instance->gpu : device;
}

Result<DeviceMemory> NvmlWithInstances::Memory(const Uuid& device) {
  const InstanceOf* instance = Find(device);
  if (!instance) return nvml_->Memory(device);
  return nvml_->mig().Memory(instance->gpu, instance->gpu_instance, instance->compute_instance);
}

Result<std::vector<ProcessUse>> NvmlWithInstances::Processes(const Uuid& device) {
  if (const InstanceOf* instance = Find(device))
    return nvml_->mig().Processes(instance->gpu, instance->gpu_instance, instance->compute_instance);
  if (IsPartitioned(device)) return std::vector<ProcessUse>();
  return nvml_->Processes(device);
}

Result<ComputeMode> NvmlWithInstances::Mode(const Uuid& device) { return nvml_->Mode(GpuOf(device)); }

Result<double> NvmlWithInstances::Busy(const Uuid& device) {
  if (Find(device)) return Fail(Code::kUnsupported, "NVML does not tell how busy a MIG instance is");
  return nvml_->Busy(device);
}

Status NvmlWithInstances::SetMode(const Uuid& device, ComputeMode mode) {
  if (Find(device) || IsPartitioned(device))
    return Fail(Code::kUnsupported, "a partitioned GPU keeps its compute mode");
  return nvml_->SetMode(device, mode);
}

Result<unsigned> NvmlWithInstances::Multiprocessors(const Uuid& device) {
  const InstanceOf* instance = Find(device);
  if (!instance) return nvml_->Multiprocessors(device);
  if (!instance->sms)
    return Fail(Code::kUnsupported, "the driver does not tell an instance's multiprocessors");
  return *instance->sms;
}

Result<Locality> NvmlWithInstances::Near(const Uuid& device) { return nvml_->Near(GpuOf(device)); }

}  // namespace gpumux::gpu
