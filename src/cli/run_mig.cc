// SPDX-License-Identifier: Apache-2.0
#include "cli/run_mig.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/daemon_start.h"
#include "cli/envelope.h"
#include "cli/mig/machine.h"
#include "cli/mig/plan_document.h"
#include "core/context_cost.h"
#include "gpu/nvml_mig.h"
#include "gpu/source.h"

namespace gpumux::cli {
namespace {

using core::mig::Placed;
using Json = nlohmann::json;

constexpr std::chrono::minutes kPatience{5};

// The MIG devices, by UUID, that somebody has a promise on or that somebody outside gpumux uses.
std::set<std::string> InUse(const Json& gpus) {
  std::set<std::string> used;
  for (const Json& gpu : gpus.is_array() ? gpus : Json::array()) {
    const bool busy = !At(gpu, "mode").is_null() || !At(gpu, "unmanaged_pids").empty();
    if (busy) used.insert(TextAt(gpu, "uuid", 64));
  }
  return used;
}

bool IsFreeFor(const Json& gpus, uint64_t bytes) {
  for (const Json& gpu : gpus.is_array() ? gpus : Json::array()) {
    const Json& promisable = At(gpu, "mem_promisable_bytes");
    if (TextAt(gpu, "uuid", 64).starts_with("MIG-") && At(gpu, "mode").is_null() &&
        promisable.is_number_unsigned() && promisable.get<uint64_t>() >= bytes)
      return true;
  }
  return false;
}

// GPUs with MIG on, and of each instance whether it may be touched.
MigGpus Plannable(gpu::Nvml& nvml, MigGpus machine, const std::set<std::string>& used) {
  MigGpus with;
  with.read = std::move(machine.read);
  for (size_t at = 0; at < machine.gpus.size(); ++at) {
    if (!machine.enabled[at]) continue;
    core::mig::GpuState gpu = machine.gpus[at];
    const auto uuid = gpu::ParseUuid(machine.uuids[at]);
    const auto devices = uuid ? nvml.mig().Devices(*uuid) : Result<std::vector<gpu::MigDevice>>();
    const auto instances = uuid ? nvml.mig().Instances(*uuid) : Result<std::vector<gpu::MigInstance>>();
    if (!devices || !instances) continue;
    for (auto& present : gpu.present) {
      for (const gpu::MigInstance& instance : *instances) {
        if (present.instance != Placed{instance.placement.start, instance.profile}) continue;
        for (const gpu::MigDevice& device : *devices) {
          if (device.gpu_instance == instance.id && used.contains(device.uuid))
            present.users.emplace_back("a tenant");
        }
      }
    }
    with.gpus.push_back(std::move(gpu));
    with.uuids.push_back(machine.uuids[at]);
  }
  return with;
}

// "1g.18gb@0,3g.71gb@4": as mig apply takes it.
std::string Listed(const gpu::MigModel& model, const core::mig::Layout& layout) {
  std::string text;
  for (const Placed& each : layout)
    text += fmt::format("{}{}@{}", text.empty() ? "" : ",", core::mig::ProfileOf(model, each.profile).name,
                        each.start);
  return text;
}

std::string Made(const ApiClient& client, const core::mig::GpuState& gpu, const std::string& uuid,
                 const core::mig::GpuPlan& plan) {
  Json instances = Json::array();
  for (const Placed& each : plan.layout)
    instances.push_back({{"profile", each.profile}, {"start", each.start}});
  const auto answer = client.Post("/v1/mig/apply",
                                  Json{{"gpu", uuid}, {"instances", std::move(instances)}}.dump(), kPatience);
  if (!answer) return fmt::format("no instance was made: {}", answer.error().message);
  return fmt::format("made {} on {}", core::mig::Name(*gpu.model, plan.given.front().instance), gpu.name);
}

}  // namespace

std::string InstanceFor(const RunOptions& options, const Endpoints& endpoints, bool make) {
  if (!options.mem || options.mem->bytes == 0) return "";
  const auto client = ConnectOrStart(endpoints);
  if (!client) return "";
  const auto status = client->Get("/v1/status");
  if (!status) return "";
  const Json json = Json::parse(*status, nullptr, false);
  const Json& gpus = At(At(json, "data"), "gpus");
  if (IsFreeFor(gpus, options.mem->bytes)) return "";
  auto nvml = gpu::Nvml::Open(endpoints.source);
  if (!nvml) return "";
  auto machine = MigGpusOfMachine(**nvml, endpoints.source.simulated);
  if (!machine) return "";
  const MigGpus plannable = Plannable(**nvml, std::move(*machine), InUse(gpus));
  if (plannable.gpus.empty()) return "";
  core::mig::Want want{.name = "run"};
  want.bytes = options.mem->bytes + core::ContextCostOf(plannable.gpus.front().model->name).first_share_bytes;
  const auto plan = core::mig::MakePlan(plannable.gpus, {want}, {.may_disturb = false});
  if (!plan || !plan->unplaced.empty()) return "";
  for (size_t at = 0; at < plan->gpus.size(); ++at) {
    const auto& of_gpu = plan->gpus[at];
    if (of_gpu.given.empty()) continue;
    if (make) return Made(*client, plannable.gpus[at], plannable.uuids[at], of_gpu);
    return fmt::format("an instance can be made: gpumux mig apply {} --gpu {}, or --allow-reconfigure",
                       Listed(*plannable.gpus[at].model, of_gpu.layout), plannable.uuids[at]);
  }
  return "";
}

}  // namespace gpumux::cli
