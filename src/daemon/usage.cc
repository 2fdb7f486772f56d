// SPDX-License-Identifier: Apache-2.0
#include "daemon/usage.h"

#include <algorithm>

namespace gpumux::daemon {

namespace {

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

void Add(Refusals& sum, const ProcessWords& words) {
  sum.own_limit += words.refused_own_limit;
  sum.device_full += words.refused_device_full;
  sum.own_part += words.refused_own_part;
  if (words.last_refused_bytes) sum.last_refused_bytes = words.last_refused_bytes;
}

}  // namespace

std::optional<unsigned> SlotOf(const Tenant& tenant, size_t gpu_index) {
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    if (tenant.gpus[slot] == gpu_index) return slot;
  }
  return std::nullopt;
}

Usage Measure(const Tenant& tenant, unsigned slot, const GpuState& gpu) {
  Usage usage;
  const uint64_t device = gpu.ledger.TotalBytes();
  uint64_t only_peak = 0;
  for (const auto& [key, member] : tenant.members) {
    const auto* entry = gpu.ledger.Find(tenant.id, key);
    if (!entry) continue;
    const Member::Gpu& on = member.gpus[slot];
    usage.allowance_bytes += Minus(entry->overhead_bytes, on.real_overhead_bytes);
    if (member.died) {
      usage.used_bytes += entry->granted_bytes + on.real_overhead_bytes;
      usage.uncommitted_bytes += entry->granted_bytes + entry->overhead_bytes;
      continue;
    }
    usage.overhead_bytes += on.real_overhead_bytes;
    usage.uncommitted_bytes += on.pending_contexts * gpu.cost.ChargeBytes();
    if (!member.page) {
      usage.used_bytes += on.real_overhead_bytes;
      continue;
    }
    const ProcessWords words = member.page->Read(slot, entry->granted_bytes, device);
    usage.free_credit_bytes += words.free_bytes;
    usage.used_bytes += entry->granted_bytes - words.free_bytes + on.real_overhead_bytes;
    usage.uncommitted_bytes += Minus(entry->granted_bytes - words.free_bytes, words.committed_bytes);
    only_peak = words.peak_bytes + on.real_overhead_bytes;
  }
  // The peak of one process is exact; of several it is the highest sum seen.
  usage.peak_bytes = std::max(usage.used_bytes, tenant.members.size() == 1 ? only_peak : 0);
  return usage;
}

void NoteUse(Tenant& tenant, const Machine& machine, Time now) {
  uint64_t used = 0;
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot)
    used += Measure(tenant, slot, *machine.gpus()[tenant.gpus[slot]]).used_bytes;
  tenant.use.Note(now, used);
}

void NotePeak(Tenant& tenant, unsigned slot, const GpuState& gpu) {
  tenant.peak_bytes[slot] = std::max(tenant.peak_bytes[slot], Measure(tenant, slot, gpu).peak_bytes);
}

Refusals CountRefusals(const Tenant& tenant, const Machine& machine) {
  Refusals sum = tenant.refusals_of_dead;
  for (const auto& [key, member] : tenant.members) {
    if (!member.page || member.died) continue;
    for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
      Add(sum, member.page->Read(slot, 0, machine.gpus()[tenant.gpus[slot]]->ledger.TotalBytes()));
    }
  }
  // One that died while there was no daemon did not bring its page.
  const Refusals& before = tenant.refusals_before;
  sum.own_limit = std::max(sum.own_limit, before.own_limit);
  sum.device_full = std::max(sum.device_full, before.device_full);
  sum.own_part = std::max(sum.own_part, before.own_part);
  if (sum.last_refused_bytes == 0) sum.last_refused_bytes = before.last_refused_bytes;
  return sum;
}

uint64_t CountLaunches(const Tenant& tenant) {
  uint64_t sum = tenant.launches_of_dead;
  for (const auto& [key, member] : tenant.members) {
    if (!member.page || member.died) continue;
    for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) sum += member.page->Read(slot, 0, 0).launches;
  }
  return sum;
}

std::optional<bool> MemoryEnforced(const Tenant& tenant) {
  if (!(tenant.ended ? tenant.was_not_enforced : tenant.not_enforced).empty()) return false;
  if (tenant.state == TenantState::kEnded && tenant.guard_seen) return true;
  for (const auto& [key, member] : tenant.members)
    if (!member.died && (member.page ? member.page->InForce() : member.guard_before)) return true;
  return std::nullopt;
}

void ForgetProgram(Tenant& tenant, Member& member, unsigned slot, GpuState& gpu) {
  const auto* entry = gpu.ledger.Find(tenant.id, member.key);
  if (!entry) return;
  NotePeak(tenant, slot, gpu);
  gpu.ledger.TakeBack(tenant.id, member.key, entry->granted_bytes);
  gpu.ledger.SetOverhead(tenant.id, member.key, 0);
  if (member.page) member.page->Clear(slot);
  Member::Gpu nothing;
  nothing.own_bytes = member.gpus[slot].own_bytes;
  member.gpus[slot] = nothing;
}

uint64_t RecallCredit(Tenant& tenant, unsigned slot, GpuState& gpu) {
  uint64_t sum = 0;
  for (auto& [key, member] : tenant.members) {
    const auto* entry = gpu.ledger.Find(tenant.id, key);
    if (!entry || !member.page || member.died) continue;
    const uint64_t taken = member.page->TakeCredit(slot, entry->granted_bytes);
    sum += gpu.ledger.TakeBack(tenant.id, key, taken);
  }
  return sum;
}

uint64_t RecallBurst(Tenants& tenants, size_t gpu_index, GpuState& gpu) {
  uint64_t sum = 0;
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    if (entry.used_bytes <= entry.guaranteed_bytes) continue;
    Tenant* tenant = tenants.Find(id);
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (slot) sum += RecallCredit(*tenant, *slot, gpu);
  }
  return sum;
}

}  // namespace gpumux::daemon
