// SPDX-License-Identifier: Apache-2.0
#include "cli/status_local.h"

#include "cli/envelope.h"
#include "gpu/nvml_instances.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
constexpr const char* kNoDaemon = "no daemon runs";

void Unknown(Json& object, const char* key, const std::string& reason) {
  object[key] = nullptr;
  object[std::string(key) + "_reason"] = reason;
}

}  // namespace

Result<std::string> StatusFromNvml(const gpu::GpuSource& source) {
  auto nvml = gpu::OpenNvmlWithInstances(source);
  if (!nvml) return tl::unexpected(nvml.error());
  Json gpus = Json::array();
  for (const gpu::Device& device : (*nvml)->Devices()) {
    Json gpu;
    gpu["uuid"] = device.uuid.ToString();
    gpu["index"] = device.index.gpu;
    gpu["label"] = device.index.Label();
    gpu["name"] = device.name;
    gpu["pci_bus_id"] = device.pci_bus_id;
    for (const char* key :
         {"mode", "mem_guaranteed_bytes", "mem_promisable_bytes", "mem_unexplained_bytes"}) {
      Unknown(gpu, key, kNoDaemon);
    }
    if (const auto memory = (*nvml)->Memory(device.uuid)) {
      gpu["mem_total_bytes"] = memory->total_bytes;
      gpu["mem_reserve_bytes"] = memory->reserved_bytes;
      gpu["mem_device_used_bytes"] = memory->used_bytes;
      // Without a daemon nobody has a promise: whatever is used is unmanaged,
      // and none of it is a tenant's.
      gpu["mem_used_bytes"] = 0;
      gpu["mem_unmanaged_bytes"] = memory->used_bytes;
    } else {
      for (const char* key : {"mem_total_bytes", "mem_reserve_bytes", "mem_device_used_bytes",
                              "mem_used_bytes", "mem_unmanaged_bytes"}) {
        Unknown(gpu, key, memory.error().message);
      }
    }
    if (const auto busy = (*nvml)->Busy(device.uuid))
      gpu["busy_ratio"] = *busy;
    else
      Unknown(gpu, "busy_ratio", busy.error().message);
    if (const auto processes = (*nvml)->Processes(device.uuid)) {
      gpu["unmanaged_pids"] = Json::array();
      for (const gpu::ProcessUse& process : *processes) gpu["unmanaged_pids"].push_back(process.pid);
    } else {
      Unknown(gpu, "unmanaged_pids", processes.error().message);
    }
    gpu["owner"] = nullptr;
    gpus.push_back(std::move(gpu));
  }
  Json data{
      {"gpus", std::move(gpus)}, {"driver_version", (*nvml)->DriverVersion()}, {"tenants", Json::array()}};
  Unknown(data, "daemon", kNoDaemon);
  return Envelope("status", source.simulated, data) + "\n";
}

}  // namespace gpumux::cli
