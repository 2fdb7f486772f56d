// SPDX-License-Identifier: Apache-2.0
#include "daemon/credit_desk.h"

#include <algorithm>

#include "core/reclaim.h"
#include "daemon/refusals.h"
#include "daemon/usage.h"

namespace gpumux::daemon {

namespace {

// A driver's allocation takes up to some hundred microseconds; 2 s is far
// beyond any, and short enough for a program to get its out-of-memory.
constexpr Time kParkLimit = std::chrono::seconds(2);
constexpr Time kRetryPeriod = std::chrono::milliseconds(1);
constexpr Time kReadingAge = std::chrono::milliseconds(50);
// Of one daemon; beyond it asks are judged at once.
constexpr size_t kMaxParked = 65536;

}  // namespace

void CreditDesk::Submit(Ask ask) {
  const bool room = parked_.size() < kMaxParked;
  if (Try(ask, {.calls = room, .room = room}) == Outcome::kDone) return;
  waiting_.insert(ask.process);
  parked_.push_back({std::move(ask), clock_.Now()});
  if (!timer_) timer_ = loop_.Every(kRetryPeriod, [this] { Retry(); });
}

void CreditDesk::Forget(uint64_t session) {
  parked_.remove_if([&](const Parked& parked) {
    if (parked.ask.session != session) return false;
    waiting_.erase(waiting_.find(parked.ask.process));
    return true;
  });
}

void CreditDesk::Retry() {
  // A reply that fails may end a session and so call Forget: work on our own list.
  std::list<Parked> now;
  now.swap(parked_);
  const Time time = clock_.Now();
  while (!now.empty()) {
    const Parked& first = now.front();
    const Time waited = time - first.since;
    if (Try(first.ask, {.calls = waited < kParkLimit, .room = waited < core::kAnswerLimit}) ==
        Outcome::kDone) {
      waiting_.erase(waiting_.find(first.ask.process));
      now.pop_front();
    } else {
      parked_.splice(parked_.end(), now, now.begin());
    }
  }
  if (parked_.empty()) timer_ = {};
}

bool CreditDesk::WorthWaiting(const Ask& ask, const Tenant& tenant, size_t gpu_index, uint64_t bytes,
                              core::Verdict verdict, Patience patience) {
  const GpuState& gpu = *machine_.gpus()[gpu_index];
  if (patience.calls) {
    if (death_unnoticed && death_unnoticed(tenant)) return true;
    std::map<core::TenantId, uint64_t> cancelled;
    for (const auto& [id, entry] : gpu.ledger.Tenants()) {
      const Tenant* other = tenants_.Find(id);
      const auto slot = other ? SlotOf(*other, gpu_index) : std::nullopt;
      if (slot) cancelled[id] = Measure(*other, *slot, gpu).uncommitted_bytes;
    }
    if (gpu.ledger.WouldFit(tenant.id, bytes, cancelled)) return true;
  }
  const uint64_t available = gpu.ledger.AvailableBytes(tenant.id);
  return patience.room && ask.reclaim && make_room && bytes > available &&
         make_room(tenant, ask.process, gpu_index, bytes - available, verdict == core::Verdict::kLimit);
}

CreditDesk::Outcome CreditDesk::Try(const Ask& ask, Patience patience) {
  Tenant* tenant = tenants_.Find(ask.tenant);
  const auto member =
      tenant ? tenant->members.find(ask.process) : std::map<core::ProcessKey, Member>::iterator();
  if (!tenant || member == tenant->members.end() || member->second.died || !member->second.page) {
    Refuse(ask, GPUMUX_REASON_NOT_A_TENANT);
    return Outcome::kDone;
  }
  const size_t gpu_index = tenant->gpus[ask.slot];
  monitor_.RefreshIfOlder(gpu_index, kReadingAge);
  GpuState& gpu = *machine_.gpus()[gpu_index];
  if (tenant->frozen) {
    Refuse(ask, GPUMUX_REASON_LIMIT);
    return Outcome::kDone;
  }

  const uint64_t bytes = ask.context ? gpu.cost.ChargeBytes() : ask.bytes;
  const auto attempt = [&](bool with_slack) {
    if (ask.context) return gpu.ledger.ChargeOverhead(tenant->id, ask.process, bytes);
    return gpu.ledger.GrantCredit(tenant->id, ask.process, bytes, with_slack);
  };
  auto grant = attempt(/*with_slack=*/true);
  if (grant.verdict != core::Verdict::kGranted && RecallCredit(*tenant, ask.slot, gpu) > 0) {
    grant = attempt(/*with_slack=*/false);
  }
  if (grant.verdict == core::Verdict::kDeviceFull && RecallBurst(tenants_, gpu_index, gpu) > 0) {
    grant = attempt(/*with_slack=*/false);
  }

  if (grant.verdict == core::Verdict::kGranted) {
    if (ask.context) {
      // The allowance for code that is loaded lazily, as far as there is room.
      const uint64_t allowance =
          std::min(core::kLazyCodeAllowanceBytes, gpu.ledger.AvailableBytes(tenant->id));
      gpu.ledger.ChargeOverhead(tenant->id, ask.process, allowance);
      ++member->second.gpus[ask.slot].pending_contexts;
      Granted(ask, bytes + allowance, 0, 0);
    } else {
      Granted(ask, 0, bytes, grant.slack_bytes);
    }
    return Outcome::kDone;
  }

  if (WorthWaiting(ask, *tenant, gpu_index, bytes, grant.verdict, patience)) return Outcome::kLater;
  Refuse(ask, grant.verdict == core::Verdict::kLimit ? GPUMUX_REASON_LIMIT : GPUMUX_REASON_DEVICE_FULL);
  return Outcome::kDone;
}

// In this order, so that a death in its middle gives nobody more than is counted: it is among
// what the limits page says is granted, and only then the process's.
void CreditDesk::Granted(const Ask& ask, uint64_t charged_bytes, uint64_t credit_bytes,
                         uint64_t slack_bytes) {
  Tenant& tenant = *tenants_.Find(ask.tenant);
  Member& member = tenant.members.at(ask.process);
  const size_t gpu_index = tenant.gpus[ask.slot];
  GpuState& gpu = *machine_.gpus()[gpu_index];
  monitor_.Publish(gpu_index);
  member.page->AddCredit(ask.slot, slack_bytes);
  member.page->OfferGrant(ask.request_id);
  Answer answer{.reason = GPUMUX_REASON_NONE,
                .charged_bytes = charged_bytes,
                .limit_bytes = gpu.ledger.ToldLimitBytes(ask.tenant),
                .used_bytes = gpu.ledger.Find(ask.tenant)->used_bytes,
                .promisable_bytes = gpu.ledger.PromisableBytes()};
  if (ask.reply(answer) || !member.page->WithdrawGrant(ask.request_id)) return;
  if (ask.context) {
    --member.gpus[ask.slot].pending_contexts;
    gpu.ledger.SetOverhead(ask.tenant, ask.process,
                           gpu.ledger.Find(ask.tenant, ask.process)->overhead_bytes - charged_bytes);
  } else {
    gpu.ledger.TakeBack(ask.tenant, ask.process, credit_bytes);
  }
  monitor_.Publish(gpu_index);
}

void CreditDesk::Note(const Ask& ask, uint32_t reason) {
  Tenant& tenant = *tenants_.Find(ask.tenant);
  const GpuState& gpu = *machine_.gpus()[tenant.gpus[ask.slot]];
  const uint64_t bytes = ask.context ? gpu.cost.ChargeBytes() : ask.bytes;
  const bool limit = reason == GPUMUX_REASON_LIMIT;
  NoteRefusal(tenant, ask.slot, ask.process, bytes,
              limit ? Refusal::Cause::kOwnLimit : Refusal::Cause::kGpuFull, tenants_, machine_, clock_);
  if (!ask.context) return;
  // The guard's page counts allocations alone.
  ++(limit ? tenant.refusals_of_dead.own_limit : tenant.refusals_of_dead.device_full);
  tenant.refusals_of_dead.last_refused_bytes = bytes;
}

void CreditDesk::Refuse(const Ask& ask, uint32_t reason) {
  Answer answer;
  answer.reason = reason;
  if (reason == GPUMUX_REASON_LIMIT || reason == GPUMUX_REASON_DEVICE_FULL) Note(ask, reason);
  if (const Tenant* tenant = tenants_.Find(ask.tenant); tenant && ask.slot < tenant->gpus.size()) {
    const GpuState& gpu = *machine_.gpus()[tenant->gpus[ask.slot]];
    answer.limit_bytes = gpu.ledger.ToldLimitBytes(ask.tenant);
    if (const auto* entry = gpu.ledger.Find(ask.tenant)) answer.used_bytes = entry->used_bytes;
    answer.promisable_bytes = gpu.ledger.PromisableBytes();
  }
  ask.reply(answer);
  if (Tenant* tenant = tenants_.Find(ask.tenant); tenant && on_refused) on_refused(*tenant);
}

}  // namespace gpumux::daemon
