// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/endpoints.h"
#include "cli/envelope.h"
#include "cli/mig/commands.h"
#include "cli/mig/state.h"
#include "cli/terminal.h"
#include "gpu/source.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;

void Unknown(Json& object, const char* key, const Error& why) {
  object[key] = nullptr;
  object[std::string(key) + "_reason"] = why.message;
}

template <typename T>
void Set(Json& object, const char* key, const std::optional<T>& value, const char* reason) {
  if (value) {
    object[key] = *value;
  } else {
    Unknown(object, key, Error{.code = Code::kUnsupported, .message = reason, .hint = {}});
  }
}

Json JsonOf(const MigDeviceState& state) {
  Json device{{"compute_instance", state.device.compute_instance},
              {"index", state.device.index},
              {"uuid", state.device.uuid},
              {"name", state.device.name}};
  Set(device, "sms", state.device.sms, "this driver does not tell");
  if (state.memory) {
    device["mem_total_bytes"] = state.memory->total_bytes;
    device["mem_used_bytes"] = state.memory->used_bytes;
  } else {
    Set(device, "mem_total_bytes", state.device.total_bytes, "this driver does not tell");
    Unknown(device, "mem_used_bytes", state.memory.error());
  }
  Set(device, "tenants", state.tenants, "no daemon answers");
  if (!state.processes) {
    Unknown(device, "processes", state.processes.error());
    return device;
  }
  device["processes"] = Json::array();
  for (const gpu::ProcessUse& use : *state.processes) {
    Json process{{"pid", use.pid}};
    Set(process, "mem_bytes", use.used_bytes, "the driver does not know");
    device["processes"].push_back(std::move(process));
  }
  return device;
}

Json JsonOf(const MigInstanceState& state, const MigGpuState& gpu) {
  Json instance{{"gpu_instance", state.id}, {"devices", Json::array()}};
  for (const MigDeviceState& device : state.devices) instance["devices"].push_back(JsonOf(device));
  const Error why = gpu.placements
                        ? Error{.code = Code::kNotFound, .message = "it is new, or about to go", .hint = {}}
                        : gpu.placements.error();
  if (state.placed) {
    instance["profile_id"] = state.placed->profile;
    instance["profile"] = state.profile;
    instance["start"] = state.placed->placement.start;
    instance["size"] = state.placed->placement.size;
  } else {
    for (const char* key : {"profile_id", "profile", "start", "size"}) Unknown(instance, key, why);
  }
  return instance;
}

Json JsonOf(const MigGpuState& state) {
  Json gpu{{"uuid", state.device.uuid.ToString()},
           {"index", state.device.index.Label()},
           {"name", state.device.name},
           {"summary", MigStateLine(state)}};
  if (!state.modes) {
    for (const char* key : {"mode", "pending"}) Unknown(gpu, key, state.modes.error());
  } else if (!*state.modes) {
    gpu["mode"] = gpu["pending"] = "none";
  } else {
    gpu["mode"] = (*state.modes)->current ? "on" : "off";
    gpu["pending"] = (*state.modes)->pending ? "on" : "off";
  }
  gpu["instances"] = Json::array();
  if (state.instances) {
    for (const MigInstanceState& instance : *state.instances)
      gpu["instances"].push_back(JsonOf(instance, state));
  } else {
    Unknown(gpu, "instances", state.instances.error());
  }
  Set(gpu, "memory_slices", state.model.memory_slices, "the driver does not tell it without MIG or rights");
  if (!state.room) {
    Unknown(gpu, "fits", state.room.error());
  } else {
    gpu["fits"] = Json::array();
    for (const auto& [name, count] : *state.room)
      gpu["fits"].push_back({{"profile", name}, {"count", count}});
  }
  return gpu;
}

// Names of tenants by their MIG device's UUID. Nullopt: no daemon answers.
std::optional<std::map<std::string, std::vector<std::string>>> TenantsByDevice() {
  const auto endpoints = FindEndpoints();
  const auto client = endpoints ? ApiClient::Connect(*endpoints) : tl::unexpected(endpoints.error());
  const auto status = client ? client->Get("/v1/status") : tl::unexpected(client.error());
  if (!status) return std::nullopt;
  std::map<std::string, std::vector<std::string>> tenants;
  const Json json = Json::parse(*status, nullptr, false);
  for (const Json& tenant : At(At(json, "data"), "tenants")) {
    for (const Json& gpu : At(tenant, "gpus"))
      tenants[TextAt(gpu, "uuid", 64)].push_back(TextAt(tenant, "name", 40));
  }
  return tenants;
}

void AddTenants(std::vector<MigGpuState>& gpus) {
  const auto tenants = TenantsByDevice();
  if (!tenants) return;
  for (MigGpuState& gpu : gpus) {
    if (!gpu.instances) continue;
    for (MigInstanceState& instance : *gpu.instances) {
      for (MigDeviceState& device : instance.devices) {
        const auto its = tenants->find(device.device.uuid);
        device.tenants = its == tenants->end() ? std::vector<std::string>() : its->second;
      }
    }
  }
}

}  // namespace

int MigStatus(const ParsedCommandLine& line) {
  const bool json = line.Has("--json");
  const auto source = gpu::FindGpuSource();
  if (!source) return Report(source.error(), json);
  const auto nvml = gpu::Nvml::Open(*source);
  if (!nvml) return Report(nvml.error(), json);
  std::vector<MigGpuState> gpus;
  for (const gpu::Device& device : (*nvml)->Devices()) gpus.push_back(ReadMigState(**nvml, device));
  AddTenants(gpus);
  if (!json)
    return Print(MigStateText(gpus, TerminalOf(STDOUT_FILENO), {geteuid() == 0, source->simulated})) ? 0 : 1;
  Json data{{"driver_version", (*nvml)->DriverVersion()}, {"gpus", Json::array()}};
  for (const MigGpuState& gpu : gpus) data["gpus"].push_back(JsonOf(gpu));
  return Print(Envelope("mig-status", source->simulated, data) + "\n") ? 0 : 1;
}

}  // namespace gpumux::cli
