// SPDX-License-Identifier: Apache-2.0
//
// The promise of a tenant that runs is changed.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "daemon/leases.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

std::string Describe(const core::Share& share) {
  if (!share.limit_bytes) return "no guarantee";
  if (*share.limit_bytes == share.guaranteed_bytes) return FormatBytes(share.guaranteed_bytes);
  return fmt::format("{}, up to {}", FormatBytes(share.guaranteed_bytes), FormatBytes(*share.limit_bytes));
}

// "memory 40.0 GiB (was 20.0 GiB), time limit 2h (was none)"
std::string Describe(const core::Change& change, const std::vector<core::Share>& before,
                     const std::optional<std::chrono::nanoseconds>& time_before, const Tenant& tenant) {
  std::string text;
  if (change.mem) text = fmt::format("memory {} (was {})", Describe(tenant.shares[0]), Describe(before[0]));
  if (change.time_limit) {
    text +=
        fmt::format("{}time limit {} (was {})", text.empty() ? "" : ", ", FormatDuration(*change.time_limit),
                    time_before ? FormatDuration(*time_before) : "none");
  }
  return text;
}

}  // namespace

// GPUs that those who wait may be given, and for whom they are kept. Who has a
// higher priority than all of these need not care.
std::map<gpu::Uuid, std::string> Leases::KeptFor(int priority) const {
  std::map<gpu::Uuid, std::string> kept;
  for (const auto& waiting : queue_.waiting()) {
    if (waiting.request.priority < priority) continue;
    for (const gpu::Uuid& gpu : waiting.wait.wants) kept.try_emplace(gpu, waiting.request.name);
  }
  return kept;
}

Status Leases::Set(const std::string& id, const core::Change& change, uid_t by) {
  for (const auto& [request, waiter] : waiters_) {
    if (waiter.id == id)
      return Fail(Code::kConflict, waiter.request.ask.name + " has not started",
                  "stop it, and ask anew for what it needs");
  }
  Tenant* tenant = tenants_.Find(id);
  if (!tenant || tenant->ended)
    return Fail(Code::kNotFound, "there is no tenant " + id + " that runs", "see them with: gpumux ps");
  if (tenant->reservation)
    return Fail(Code::kDenied, tenant->request.ask.name + " is a reservation",
                "release it with gpumux reserve --release, and reserve anew");
  if (tenant->state == TenantState::kStopping)
    return Fail(Code::kConflict, tenant->request.ask.name + " is being stopped");
  core::Changeable now{.name = tenant->request.ask.name,
                       .mode = tenant->mode,
                       .shares = tenant->shares,
                       .used_bytes = {},
                       .time_limit = tenant->request.ask.time_limit,
                       .ran = clock_.Now() - tenant->admitted};
  for (unsigned slot = 0; slot < tenant->gpus.size(); ++slot) {
    GpuState& gpu = *machine_.gpus()[tenant->gpus[slot]];
    monitor_.Refresh(tenant->gpus[slot]);
    // Bytes that nobody uses are neither in its way nor in that of others.
    RecallBurst(tenants_, tenant->gpus[slot], gpu);
    if (change.mem) RecallCredit(*tenant, slot, gpu);
    now.used_bytes.push_back(gpu.ledger.Find(id)->used_bytes);
  }
  const core::Situation situation = SituationNow();
  const core::QuotaBook quotas(policy_, situation.running);
  const core::Request& ask = tenant->request.ask;
  auto after = core::JudgeChange(change, now, situation.gpus, quotas.BoundsOf(ask.user, ask.groups),
                                 KeptFor(ask.priority));
  // What was recalled is told to its processes either way.
  for (const size_t gpu : tenant->gpus) monitor_.Publish(gpu);
  if (!after) return tl::unexpected(after.error());
  return Apply(*tenant, change, std::move(*after), by);
}

Status Leases::Apply(Tenant& tenant, const core::Change& change, std::vector<core::Share> after, uid_t by) {
  const std::vector<core::Share> before = tenant.shares;
  const RunRequest request_before = tenant.request;
  const bool freed_before = tenant.frees_as_it_goes;
  tenant.shares = std::move(after);
  tenant.frees_as_it_goes = false;
  for (size_t slot = 0; slot < tenant.gpus.size(); ++slot) {
    const uint64_t used = machine_.gpus()[tenant.gpus[slot]]->ledger.Find(tenant.id)->used_bytes;
    tenant.frees_as_it_goes |= used > tenant.shares[slot].limit_bytes.value_or(UINT64_MAX);
  }
  if (change.mem) {
    tenant.request.ask.mem = change.mem;
    tenant.request.ask.mem_limit = change.mem_limit;
  }
  if (change.time_limit) tenant.request.ask.time_limit = change.time_limit;
  tenant.request.text = ChangedText(tenant.request);
  // Stored before it is promised, as the lease itself was.
  Status done = Save(tenant);
  if (done) done = EnterChange(tenant, before);
  if (!done) {
    tenant.shares = before;
    tenant.request = request_before;
    tenant.frees_as_it_goes = freed_before;
    if (Status saved = Save(tenant); !saved) LogError("tenant {}: {}", tenant.id, saved.error().ToString());
    return done;
  }
  if (change.time_limit) WatchTimeLimit(tenant);
  tenant.frozen = false;
  for (unsigned slot = 0; slot < tenant.gpus.size(); ++slot) {
    // The ledger's own figure, no reading that may have met calls half done: it holds at once.
    const bool above = machine_.gpus()[tenant.gpus[slot]]->ledger.AboveLimit(tenant.id);
    tenant.readings_above[slot] = above ? 2 : 0;
    tenant.frozen |= above;
  }
  for (const size_t gpu : tenant.gpus) monitor_.Publish(gpu);
  std::string text = Describe(change, before, request_before.ask.time_limit, tenant);
  if (tenant.frozen) text += "; it uses more, and gets none until it is below";
  events_.Note(About(EventKind::kChanged, tenant, fmt::format("{}: {}", UserName(by), text), by));
  ScheduleSoon();
  return {};
}

// In the ledgers of all its GPUs, or of none.
Status Leases::EnterChange(const Tenant& tenant, const std::vector<core::Share>& before) {
  const auto enter = [&](size_t slot, const core::Share& share) {
    return machine_.gpus()[tenant.gpus[slot]]->ledger.ChangeTenant(tenant.id, share.guaranteed_bytes,
                                                                   share.limit_bytes);
  };
  for (size_t slot = 0; slot < tenant.gpus.size(); ++slot) {
    if (enter(slot, tenant.shares[slot])) continue;
    for (size_t undo = 0; undo < slot; ++undo) enter(undo, before[undo]);
    return Fail(Code::kInternal, fmt::format("the ledger of GPU {} refused what was found to fit",
                                             machine_.gpus()[tenant.gpus[slot]]->device.index.Label()));
  }
  return {};
}

}  // namespace gpumux::daemon
