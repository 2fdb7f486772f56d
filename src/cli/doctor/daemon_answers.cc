// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/daemon_answers.h"

#include <algorithm>

#include "base/process.h"
#include "base/units.h"
#include "cli/envelope.h"

namespace gpumux::cli::doctor {
namespace {

using Json = nlohmann::json;

Json StatusData(const DaemonView& daemon) { return At(Json::parse(daemon.status, nullptr, false), "data"); }

std::vector<Json> List(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_array() ? value.get<std::vector<Json>>() : std::vector<Json>();
}

Result<std::vector<Stranger>> EverybodyOf(const Environment& environment) {
  const GpuView& gpus = environment.gpus();
  if (!gpus.nvml) return Fail(Code::kUnavailable, "neither a daemon nor NVML answers");
  std::vector<Stranger> all;
  for (const gpu::Device& device : gpus.nvml->Devices()) {
    const auto processes = gpus.nvml->Processes(device.uuid);
    if (!processes) continue;
    for (const gpu::ProcessUse& process : *processes)
      all.push_back({process.pid, device.index.gpu, process.used_bytes});
  }
  return all;
}

bool IsAncestor(const Environment& environment, int64_t ancestor, pid_t pid) {
  // A bound, for the tree changes while it is walked.
  for (int depth = 0; depth < 1000 && pid > 1; ++depth) {
    if (pid == ancestor) return true;
    const auto stat = ReadProcessStat(pid, environment.Proc());
    if (!stat) return false;
    pid = stat->parent;
  }
  return false;
}

Membership Describe(const Json& tenant) {
  const Json& limit = At(tenant, "mem_limit_bytes");
  return {.tenant_id = TextAt(tenant, "id"),
          .tenant_name = TextAt(tenant, "name"),
          .guard = "",
          .mem_limit =
              limit.is_number_unsigned() ? FormatBytes(limit.get<uint64_t>()) : "what is promised to nobody"};
}

}  // namespace

const DaemonView* Answering(const Environment& environment) {
  for (const DaemonView& daemon : environment.daemons()) {
    if (daemon.state == DaemonView::State::kAnswers) return &daemon;
  }
  return nullptr;
}

Result<std::vector<Stranger>> UnmanagedOf(const Environment& environment) {
  const DaemonView* daemon = Answering(environment);
  if (!daemon) return EverybodyOf(environment);
  std::vector<Stranger> unmanaged;
  const GpuView& gpus = environment.gpus();
  for (const Json& gpu : List(StatusData(*daemon), "gpus")) {
    const Json& index = At(gpu, "index");
    for (const Json& pid : List(gpu, "unmanaged_pids")) {
      if (!pid.is_number_integer() || !index.is_number_unsigned()) continue;
      Stranger stranger{pid.get<pid_t>(), index.get<unsigned>(), std::nullopt};
      const auto uuid = gpu::ParseUuid(TextAt(gpu, "uuid"));
      const auto processes = gpus.nvml && uuid
                                 ? gpus.nvml->Processes(*uuid)
                                 : Result<std::vector<gpu::ProcessUse>>(std::vector<gpu::ProcessUse>());
      if (processes) {
        for (const gpu::ProcessUse& use : *processes) {
          if (use.pid == stranger.pid) stranger.bytes = use.used_bytes;
        }
      }
      unmanaged.push_back(stranger);
    }
  }
  return unmanaged;
}

Result<std::optional<Membership>> MembershipOf(const Environment& environment, pid_t pid) {
  const DaemonView* daemon = Answering(environment);
  if (!daemon) return Fail(Code::kUnavailable, "no daemon answers");
  const auto tenants = List(StatusData(*daemon), "tenants");
  for (const Json& tenant : tenants) {
    for (const Json& member : List(tenant, "members")) {
      if (At(member, "pid") != pid) continue;
      Membership membership = Describe(tenant);
      membership.guard = TextAt(member, "guard");
      return membership;
    }
  }
  // Until it uses CUDA, a process is known by its ancestors alone.
  for (const Json& tenant : tenants) {
    const Json& program = At(tenant, "pid");
    if (program.is_number_integer() && IsAncestor(environment, program.get<int64_t>(), pid))
      return Describe(tenant);
  }
  return std::nullopt;
}

}  // namespace gpumux::cli::doctor
