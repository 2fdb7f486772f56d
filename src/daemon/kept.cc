// SPDX-License-Identifier: Apache-2.0
#include "daemon/kept.h"

#include <fmt/format.h>

#include "gpumux/abi/keeper.h"

namespace gpumux::daemon {

namespace {

// Of a tenant with hundreds of processes: its command, its program, and so many
// that are likely to outlive these.
constexpr size_t kWatchedMembers = 16;

std::vector<ProcessName> ProcessesOf(const Tenant& tenant) {
  std::vector<ProcessName> processes;
  if (tenant.session != 0 || tenant.run_expected) processes.push_back(tenant.run);
  if (tenant.child && !tenant.child_ended) processes.push_back(*tenant.child);
  size_t members = 0;
  for (const auto& [key, member] : tenant.members) {
    if (!member.died && members++ < kWatchedMembers) processes.push_back(member.process);
  }
  for (const auto& [process, left] : tenant.left_behind) {
    if (members++ < kWatchedMembers) processes.push_back(process);
  }
  return processes;
}

}  // namespace

KeptItems WhatToKeep(const Machine& machine, const Tenants& tenants) {
  KeptItems items;
  // Sockets first: they are few, and without them the rest is of no use.
  for (const auto& [id, tenant] : tenants.live()) {
    for (const size_t index : tenant->gpus) {
      const GpuState& gpu = *machine.gpus()[index];
      if (gpu.claim) items[{gpu.device.uuid.ToString(), "lock"}] = {gpu.claim.get(), std::nullopt};
    }
  }
  for (const auto& [id, tenant] : tenants.live()) {
    const auto processes = ProcessesOf(*tenant);
    for (const size_t index : tenant->gpus) {
      for (const ProcessName& process : processes) {
        if (items.size() >= GPUMUX_KEEPER_MAX_ITEMS / 2) return items;
        items[{machine.gpus()[index]->device.uuid.ToString(),
               fmt::format("process {} {}", process.pid, process.start_time)}] = {-1, process};
      }
    }
  }
  return items;
}

}  // namespace gpumux::daemon
