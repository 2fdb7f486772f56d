// SPDX-License-Identifier: Apache-2.0
//
// How a GPU is shared, changed while its tenants run: between the driver's own
// time-slicing and turns, which need nothing of the programs.
#include <fmt/format.h>

#include <set>

#include "base/log.h"
#include "daemon/leases.h"
#include "daemon/user_name.h"
#include "modes/sharing_mode.h"

namespace gpumux::daemon {

namespace {

bool ChangesLive(core::Mode mode) { return mode == core::Mode::kTimeslice || mode == core::Mode::kTurns; }

}  // namespace

// A tenant of several GPUs has one mode on all of them, and so have its neighbours there.
std::set<std::string> Leases::TogetherOn(size_t gpu_index) const {
  std::set<size_t> gpus = {gpu_index};
  std::set<std::string> together;
  for (size_t before = 0; before != gpus.size();) {
    before = gpus.size();
    for (const auto& [id, tenant] : tenants_.live()) {
      const bool on = std::any_of(tenant->gpus.begin(), tenant->gpus.end(),
                                  [&](size_t gpu) { return gpus.contains(gpu); });
      if (!on) continue;
      together.insert(id);
      gpus.insert(tenant->gpus.begin(), tenant->gpus.end());
    }
  }
  return together;
}

Status Leases::MayHaveMode(const Tenant& tenant, core::Mode mode, uid_t by) const {
  const core::Request& ask = tenant.request.ask;
  const std::string& name = ask.name;
  if (IsStranger(by) && by != tenant.uid)
    return Fail(Code::kDenied, fmt::format("{} there is {}'s", name, UserName(tenant.uid)),
                "ask them, or root");
  if (ask.mode && *ask.mode != mode)
    return Fail(Code::kConflict, fmt::format("{} was started with --mode {}", name, core::Name(*ask.mode)),
                "stop it, or start it without --mode");
  for (const size_t gpu : tenant.gpus) {
    if (Status can = modes::ModeOf(mode).Supports(machine_.gpus()[gpu]->compute_mode); !can) return can;
  }
  return {};
}

Status Leases::ChangeMode(size_t gpu_index, core::Mode mode, uid_t by) {
  const GpuState& gpu = *machine_.gpus()[gpu_index];
  const std::string index = gpu.device.index.Label();
  if (!gpu.mode)
    return Fail(Code::kConflict,
                fmt::format("GPU {} has no tenant, and no mode: the next one brings it", index),
                fmt::format("start it with --mode {}", core::Name(mode)));
  if (*gpu.mode == mode) return {};
  if (!ChangesLive(*gpu.mode) || !ChangesLive(mode))
    return Fail(Code::kUnsupported,
                fmt::format("GPU {} is in mode {}, which changes to {} only while it has no tenants", index,
                            core::Name(*gpu.mode), core::Name(mode)),
                "stop its tenants first (gpumux ps)");
  const std::set<std::string> together = TogetherOn(gpu_index);
  for (const std::string& id : together) {
    if (Status may = MayHaveMode(*tenants_.Find(id), mode, by); !may) return may;
  }
  const std::string reason = fmt::format("changed from {} by {}", core::Name(*gpu.mode), UserName(by));
  for (const std::string& id : together) {
    Tenant& tenant = *tenants_.Find(id);
    tenant.mode = mode;
    tenant.mode_reason = reason;
    for (const size_t on : tenant.gpus) machine_.gpus()[on]->mode = mode;
    // A next daemon that knows the old mode alone keeps that: no promise depends on it.
    if (Status saved = Save(tenant); !saved) LogError("tenant {}: {}", id, saved.error().ToString());
    events_.Note(
        About(EventKind::kChanged, tenant, fmt::format("mode {}, {}", core::Name(mode), reason), by));
  }
  if (on_changed) on_changed();
  ScheduleSoon();
  return {};
}

}  // namespace gpumux::daemon
