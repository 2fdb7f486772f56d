// SPDX-License-Identifier: Apache-2.0
#include "core/ledger.h"

#include <algorithm>

#include "base/units.h"

namespace gpumux::core {

namespace {

// One round trip to the daemon costs about as much as the driver's own call for
// 1 MiB; 64 MiB of slack make it rare. A sixteenth of the rest keeps sixteen
// processes from starving each other near the cap before recall sets in.
constexpr uint64_t kMaxSlackBytes = 64 * kMiB;
constexpr uint64_t kSlackShare = 16;

const std::map<TenantId, uint64_t> kNothingCancelled;

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// Sums of figures from outside (NVML) may be absurd; they must not wrap.
uint64_t Plus(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

uint64_t Cancelled(const std::map<TenantId, uint64_t>& cancelled, const TenantId& id) {
  const auto it = cancelled.find(id);
  return it == cancelled.end() ? 0 : it->second;
}

}  // namespace

void Ledger::SetOutside(uint64_t unmanaged_bytes, uint64_t unexplained_bytes) {
  unmanaged_ = unmanaged_bytes;
  unexplained_ = unexplained_bytes;
}

bool Ledger::AddTenant(const TenantId& id, uint64_t guaranteed_bytes, std::optional<uint64_t> limit_bytes) {
  if (tenants_.contains(id) || guaranteed_bytes > PromisableBytes()) return false;
  if (limit_bytes && *limit_bytes < guaranteed_bytes) return false;
  Tenant& tenant = tenants_[id];
  tenant.guaranteed_bytes = guaranteed_bytes;
  tenant.limit_bytes = limit_bytes;
  return true;
}

bool Ledger::ChangeTenant(const TenantId& id, uint64_t guaranteed_bytes,
                          std::optional<uint64_t> limit_bytes) {
  const auto it = tenants_.find(id);
  if (it == tenants_.end() || (limit_bytes && *limit_bytes < guaranteed_bytes)) return false;
  Tenant& tenant = it->second;
  const uint64_t charge = std::max(guaranteed_bytes, tenant.used_bytes);
  if (Minus(charge, tenant.ChargedBytes()) > PromisableBytes()) return false;
  tenant.guaranteed_bytes = guaranteed_bytes;
  tenant.limit_bytes = limit_bytes;
  return true;
}

void Ledger::RemoveTenant(const TenantId& id) { tenants_.erase(id); }

bool Ledger::AddProcess(const TenantId& id, ProcessKey process) {
  const auto it = tenants_.find(id);
  return it != tenants_.end() && it->second.processes.try_emplace(process).second;
}

void Ledger::RemoveProcess(const TenantId& id, ProcessKey process) {
  Tenant* tenant = nullptr;
  const Tenant::Process* found = Find(tenant, id, process);
  if (!found) return;
  tenant->used_bytes -= found->granted_bytes + found->overhead_bytes;
  tenant->processes.erase(process);
}

Ledger::Grant Ledger::GrantCredit(const TenantId& id, ProcessKey process, uint64_t bytes, bool with_slack) {
  Tenant* tenant = nullptr;
  Tenant::Process* found = Find(tenant, id, process);
  if (!found) return {};
  const Verdict verdict = Judge(id, *tenant, bytes, kNothingCancelled);
  if (verdict != Verdict::kGranted) return {verdict, 0};
  found->granted_bytes += bytes;
  tenant->used_bytes += bytes;
  uint64_t slack = 0;
  if (with_slack) {
    const uint64_t own = std::min(tenant->guaranteed_bytes, tenant->limit_bytes.value_or(UINT64_MAX));
    slack = std::min(kMaxSlackBytes, Minus(own, tenant->used_bytes) / kSlackShare);
    // Pieces below the driver's own unit would only be recalled again.
    slack -= slack % (2 * kMiB);
    found->granted_bytes += slack;
    tenant->used_bytes += slack;
  }
  return {verdict, slack};
}

void Ledger::AdoptCredit(const TenantId& id, ProcessKey process, uint64_t bytes) {
  Tenant* tenant = nullptr;
  Tenant::Process* entry = Find(tenant, id, process);
  if (!entry) return;
  tenant->used_bytes += bytes - entry->granted_bytes;
  entry->granted_bytes = bytes;
}

uint64_t Ledger::TakeBack(const TenantId& id, ProcessKey process, uint64_t bytes) {
  Tenant* tenant = nullptr;
  Tenant::Process* found = Find(tenant, id, process);
  if (!found) return 0;
  bytes = std::min(bytes, found->granted_bytes);
  found->granted_bytes -= bytes;
  tenant->used_bytes -= bytes;
  return bytes;
}

void Ledger::Overdraw(const TenantId& id, ProcessKey process, uint64_t bytes) {
  Tenant* tenant = nullptr;
  Tenant::Process* found = Find(tenant, id, process);
  if (!found) return;
  // More than the GPU has is no fact; it would make the sums wrap.
  bytes = std::min(bytes, Minus(total_, found->granted_bytes));
  found->granted_bytes += bytes;
  tenant->used_bytes += bytes;
}

Ledger::Grant Ledger::ChargeOverhead(const TenantId& id, ProcessKey process, uint64_t bytes) {
  Tenant* tenant = nullptr;
  Tenant::Process* found = Find(tenant, id, process);
  if (!found) return {};
  const Verdict verdict = Judge(id, *tenant, bytes, kNothingCancelled);
  if (verdict != Verdict::kGranted) return {verdict, 0};
  found->overhead_bytes += bytes;
  tenant->used_bytes += bytes;
  return {verdict, 0};
}

void Ledger::SetOverhead(const TenantId& id, ProcessKey process, uint64_t bytes) {
  Tenant* tenant = nullptr;
  Tenant::Process* found = Find(tenant, id, process);
  if (!found) return;
  // More than the GPU has is no fact; it would make the sums wrap.
  bytes = std::min(bytes, total_);
  tenant->used_bytes = tenant->used_bytes - found->overhead_bytes + bytes;
  found->overhead_bytes = bytes;
}

bool Ledger::WouldFit(const TenantId& id, uint64_t bytes,
                      const std::map<TenantId, uint64_t>& cancelled) const {
  const Tenant* tenant = Find(id);
  return tenant && Judge(id, *tenant, bytes, cancelled) == Verdict::kGranted;
}

uint64_t Ledger::GuaranteedBytes() const {
  uint64_t sum = 0;
  for (const auto& [id, tenant] : tenants_) sum += tenant.guaranteed_bytes;
  return sum;
}

uint64_t Ledger::UsedBytes() const {
  uint64_t sum = 0;
  for (const auto& [id, tenant] : tenants_) sum += tenant.used_bytes;
  return sum;
}

uint64_t Ledger::PromisableBytes() const { return Minus(total_, TakenBytes(kNothingCancelled)); }

bool Ledger::Holds() const { return TakenBytes(kNothingCancelled) <= total_; }

uint64_t Ledger::ShortfallBytes() const { return Minus(TakenBytes(kNothingCancelled), total_); }

uint64_t Ledger::AtRiskBytes(const TenantId& id) const {
  const Tenant* tenant = Find(id);
  return tenant ? std::min(Minus(tenant->guaranteed_bytes, tenant->used_bytes), ShortfallBytes()) : 0;
}

const Ledger::Tenant* Ledger::Find(const TenantId& id) const {
  const auto it = tenants_.find(id);
  return it == tenants_.end() ? nullptr : &it->second;
}

const Ledger::Tenant::Process* Ledger::Find(const TenantId& id, ProcessKey process) const {
  const Tenant* tenant = Find(id);
  if (!tenant) return nullptr;
  const auto it = tenant->processes.find(process);
  return it == tenant->processes.end() ? nullptr : &it->second;
}

uint64_t Ledger::AvailableBytes(const TenantId& id) const {
  const Tenant* tenant = Find(id);
  if (!tenant) return 0;
  const uint64_t there = Minus(tenant->guaranteed_bytes, tenant->used_bytes) + PromisableBytes();
  return tenant->limit_bytes ? std::min(there, Minus(*tenant->limit_bytes, tenant->used_bytes)) : there;
}

uint64_t Ledger::ToldLimitBytes(const TenantId& id) const {
  const Tenant* tenant = Find(id);
  if (!tenant) return 0;
  return tenant->limit_bytes.value_or(tenant->ChargedBytes() + PromisableBytes());
}

bool Ledger::AboveLimit(const TenantId& id) const {
  const Tenant* tenant = Find(id);
  return tenant && tenant->limit_bytes && tenant->used_bytes > *tenant->limit_bytes;
}

Ledger::Tenant::Process* Ledger::Find(Tenant*& tenant, const TenantId& id, ProcessKey process) {
  const auto it = tenants_.find(id);
  if (it == tenants_.end()) return nullptr;
  tenant = &it->second;
  const auto found = tenant->processes.find(process);
  return found == tenant->processes.end() ? nullptr : &found->second;
}

uint64_t Ledger::TakenBytes(const std::map<TenantId, uint64_t>& cancelled) const {
  uint64_t taken = Plus(Plus(reserve_, unmanaged_), unexplained_);
  for (const auto& [id, tenant] : tenants_) {
    const uint64_t used = Minus(tenant.used_bytes, Cancelled(cancelled, id));
    taken = Plus(taken, std::max(tenant.guaranteed_bytes, used));
  }
  return taken;
}

Verdict Ledger::Judge(const TenantId& id, const Tenant& tenant, uint64_t bytes,
                      const std::map<TenantId, uint64_t>& cancelled) const {
  const uint64_t used = Minus(tenant.used_bytes, Cancelled(cancelled, id));
  if (tenant.limit_bytes && bytes > Minus(*tenant.limit_bytes, used)) return Verdict::kLimit;
  const uint64_t own = Minus(tenant.guaranteed_bytes, used);
  if (bytes <= own) return Verdict::kGranted;
  return bytes - own <= Minus(total_, TakenBytes(cancelled)) ? Verdict::kGranted : Verdict::kDeviceFull;
}

}  // namespace gpumux::core
