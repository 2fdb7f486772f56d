// SPDX-License-Identifier: Apache-2.0
#include "daemon/reaper.h"

#include <fmt/format.h>
#include <poll.h>

#include <set>

#include "base/log.h"
#include "base/process.h"
#include "daemon/refusals.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {
constexpr Time kSweepPeriod = std::chrono::milliseconds(20);
// Then the bytes that NVML still shows count as the driver's doing: they become
// unexplained, and are no longer the tenant's. From the end of the time for which
// its descriptors are held.
constexpr Time kReturnLimit = std::chrono::seconds(30);
}  // namespace

Result<Member*> Reaper::Adopt(Tenant& tenant, const ProcessName& process) {
  if (tenant.members.size() >= Tenants::kMaxMembers) {
    return Fail(Code::kDenied,
                fmt::format("the tenant has {} processes on its GPUs already", tenant.members.size()));
  }
  auto pidfd = OpenPidfd(process.pid);
  if (!pidfd) return tl::unexpected(pidfd.error());
  // The pid may have been used again before the descriptor was opened.
  const auto stat = ReadProcessStat(process.pid);
  if (!stat || stat->start_time != process.start_time || stat->state == 'Z') {
    return Fail(Code::kNotFound, "the process is gone");
  }
  Member& member = tenants_.AddMember(tenant, process);
  member.name = stat->name;
  member.pidfd = std::move(*pidfd);
  member.death = loop_.OnReadable(member.pidfd.get(), [this, &tenant, &member] { Died(tenant, member); });
  for (const size_t gpu : tenant.gpus) machine_.gpus()[gpu]->ledger.AddProcess(tenant.id, member.key);
  return &member;
}

bool Reaper::DeathUnnoticed(const Tenant& tenant) const {
  for (const auto& [key, member] : tenant.members) {
    pollfd poll{member.pidfd.get(), POLLIN, 0};
    if (!member.died && ::poll(&poll, 1, 0) == 1) return true;
  }
  return false;
}

void Reaper::Died(Tenant& tenant, Member& member) {
  if (member.died) return;
  NoteUntoldRefusals(tenant, member, tenants_, machine_, clock_);
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    const GpuState& gpu = *machine_.gpus()[tenant.gpus[slot]];
    NotePeak(tenant, slot, gpu);
    if (!member.page) continue;
    const ProcessWords words = member.page->Read(slot, 0, gpu.ledger.TotalBytes());
    tenant.refusals_of_dead.own_limit += words.refused_own_limit;
    tenant.refusals_of_dead.device_full += words.refused_device_full;
    tenant.refusals_of_dead.own_part += words.refused_own_part;
    if (words.last_refused_bytes) tenant.refusals_of_dead.last_refused_bytes = words.last_refused_bytes;
    tenant.launches_of_dead += words.launches;
  }
  member.died = clock_.Now();
  member.death = {};
  if (on_died) on_died(tenant, member);
  Sweep();
}

void Reaper::Sweep() {
  std::set<size_t> gpus;
  bool waiting = false;
  std::vector<std::pair<Tenant*, core::ProcessKey>> returned;
  for (const auto& [id, tenant] : tenants_.live()) {
    for (const auto& [key, member] : tenant->members) {
      if (member.died) gpus.insert(tenant->gpus.begin(), tenant->gpus.end());
    }
  }
  std::set<size_t> silent;
  for (const size_t gpu : gpus) {
    if (!monitor_.Refresh(gpu)) silent.insert(gpu);
  }
  for (const auto& [id, tenant] : tenants_.live()) {
    for (const auto& [key, member] : tenant->members) {
      if (!member.died) continue;
      bool listed = false;
      for (unsigned slot = 0; slot < tenant->gpus.size(); ++slot) {
        listed |= member.gpus[slot].own_bytes.has_value() || silent.contains(tenant->gpus[slot]);
      }
      if (!listed) {
        returned.push_back({tenant.get(), key});
      } else if (clock_.Now() - *member.died > kReturnLimit + member.held.hold) {
        LogWarning("tenant {}: pid {} is dead, and NVML still shows memory of it", id, member.process.pid);
        returned.push_back({tenant.get(), key});
      } else {
        waiting = true;
      }
    }
  }
  if (waiting && !sweep_timer_) sweep_timer_ = loop_.Every(kSweepPeriod, [this] { Sweep(); });
  if (!waiting) sweep_timer_ = {};
  for (const auto& [tenant, key] : returned) Return(*tenant, key);
}

void Reaper::Return(Tenant& tenant, core::ProcessKey key) {
  const auto freed = tenant.members.find(key);
  if (on_freed && freed != tenant.members.end()) on_freed(tenant, freed->second);
  for (const size_t gpu : tenant.gpus) {
    machine_.gpus()[gpu]->ledger.RemoveProcess(tenant.id, key);
    monitor_.Publish(gpu);
  }
  tenants_.RemoveMember(tenant, key);
  if (on_returned) on_returned(tenant);
}

}  // namespace gpumux::daemon
