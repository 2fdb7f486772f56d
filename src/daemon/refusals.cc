// SPDX-License-Identifier: Apache-2.0
#include "daemon/refusals.h"

#include <algorithm>

#include "daemon/usage.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

// A caching allocator may try again thousands of times a second; the lists need
// NVML and /proc.
constexpr Time kListsAge = std::chrono::milliseconds(100);

void ListHolders(const Tenant& tenant, const GpuState& gpu, const Tenants& tenants, Refusal& refusal) {
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    const auto it = tenants.live().find(id);
    if (id == tenant.id || it == tenants.live().end()) continue;
    if (entry.ChargedBytes() == 0) continue;
    const Tenant& other = *it->second;
    refusal.holders.push_back({.id = id,
                               .name = other.request.ask.name,
                               .owner = UserName(other.uid),
                               .held_bytes = entry.ChargedBytes(),
                               .guaranteed_bytes = entry.guaranteed_bytes});
  }
  std::stable_sort(refusal.holders.begin(), refusal.holders.end(),
                   [](const auto& a, const auto& b) { return a.held_bytes > b.held_bytes; });
  if (refusal.holders.size() <= Refusal::kMaxListed) return;
  refusal.more_holders = refusal.holders.size() - Refusal::kMaxListed;
  refusal.holders.resize(Refusal::kMaxListed);
}

void ListOutsiders(const GpuState& gpu, Refusal& refusal) {
  for (const auto& [pid, stranger] : gpu.strangers) {
    refusal.outsiders.push_back({.pid = pid,
                                 .name = stranger.name,
                                 .owner = stranger.owner ? UserName(*stranger.owner) : "",
                                 .bytes = stranger.bytes});
  }
  std::stable_sort(refusal.outsiders.begin(), refusal.outsiders.end(),
                   [](const auto& a, const auto& b) { return a.bytes.value_or(0) > b.bytes.value_or(0); });
  if (refusal.outsiders.size() <= Refusal::kMaxListed) return;
  refusal.more_outsiders = refusal.outsiders.size() - Refusal::kMaxListed;
  refusal.outsiders.resize(Refusal::kMaxListed);
}

}  // namespace

std::string_view Name(Refusal::Cause cause) {
  switch (cause) {
    case Refusal::Cause::kOwnLimit:
      return "own_limit";
    case Refusal::Cause::kGpuFull:
      return "gpu_full";
    case Refusal::Cause::kOwnPart:
      return "own_part";
    case Refusal::Cause::kDriver:
      return "driver";
  }
  return "";
}

void NoteRefusal(Tenant& tenant, unsigned slot, core::ProcessKey process, uint64_t bytes,
                 Refusal::Cause cause, const Tenants& tenants, Machine& machine, const Clock& clock) {
  const GpuState& gpu = *machine.gpus()[tenant.gpus[slot]];
  const auto* entry = gpu.ledger.Find(tenant.id);
  if (!entry) return;
  Refusal refusal;
  refusal.cause = cause;
  refusal.gpu = gpu.device.uuid;
  refusal.gpu_index = gpu.device.index.gpu;
  refusal.process = process;
  refusal.bytes = bytes;
  refusal.guaranteed_bytes = entry->guaranteed_bytes;
  refusal.limit_bytes = entry->limit_bytes;
  // Free credit is nobody's yet.
  const uint64_t free = Measure(tenant, slot, gpu).free_credit_bytes;
  refusal.used_bytes = entry->used_bytes - std::min(entry->used_bytes, free);
  refusal.total_bytes = gpu.ledger.TotalBytes();
  refusal.promisable_bytes = gpu.ledger.PromisableBytes();
  refusal.unexplained_bytes = gpu.ledger.UnexplainedBytes();
  refusal.wall = clock.WallTime();
  refusal.at = clock.Now();
  auto& last = tenant.last_refusal;
  if (last && last->gpu == refusal.gpu && refusal.at - last->at < kListsAge) {
    refusal.at = last->at;
    refusal.holders = std::move(last->holders);
    refusal.outsiders = std::move(last->outsiders);
    refusal.more_holders = last->more_holders;
    refusal.more_outsiders = last->more_outsiders;
  } else {
    ListHolders(tenant, gpu, tenants, refusal);
    ListOutsiders(gpu, refusal);
  }
  last = std::move(refusal);
}

void NoteUntoldRefusals(Tenant& tenant, Member& member, const Tenants& tenants, Machine& machine,
                        const Clock& clock) {
  if (!member.page || member.died) return;
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    const GpuState& gpu = *machine.gpus()[tenant.gpus[slot]];
    const ProcessWords words = member.page->Read(slot, 0, gpu.ledger.TotalBytes());
    Member::Gpu& on = member.gpus[slot];
    const bool limit = words.refused_own_limit > on.seen_own_limit;
    const bool part = words.refused_own_part > on.seen_own_part;
    const bool full = words.refused_device_full > on.seen_device_full;
    on.seen_own_limit = words.refused_own_limit;
    on.seen_own_part = words.refused_own_part;
    on.seen_device_full = words.refused_device_full;
    if (!limit && !part && !full) continue;
    const auto& last = tenant.last_refusal;
    const bool told = last && last->process == member.key && last->gpu == gpu.device.uuid &&
                      last->bytes == words.last_refused_bytes;
    if (told) continue;
    NoteRefusal(tenant, slot, member.key, words.last_refused_bytes,
                full   ? Refusal::Cause::kDriver
                : part ? Refusal::Cause::kOwnPart
                       : Refusal::Cause::kOwnLimit,
                tenants, machine, clock);
  }
}

void NoteUntoldRefusals(Tenants& tenants, Machine& machine, const Clock& clock) {
  for (auto& [id, tenant] : tenants.live()) {
    for (auto& [key, member] : tenant->members) NoteUntoldRefusals(*tenant, member, tenants, machine, clock);
  }
}

}  // namespace gpumux::daemon
