// SPDX-License-Identifier: Apache-2.0
#include "guard/credit.h"

#include "guard/descriptors.h"
#include "guard/own_part.h"
#include "guard/session.h"

namespace gpumux::guard {

namespace {

// Bytes go from free credit to those in use, or back: a daemon that takes over reads
// both words at a moment without one.
class Transfer {
 public:
  explicit Transfer(gpumux_process_gpu* g) : g_(g) {
    __atomic_add_fetch(&g->transfers_begun, 1, __ATOMIC_SEQ_CST);
  }
  ~Transfer() { __atomic_add_fetch(&g_->transfers_ended, 1, __ATOMIC_SEQ_CST); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  bool Take(uint64_t bytes) {
    int64_t free = __atomic_load_n(&g_->credit_free_bytes, __ATOMIC_SEQ_CST);
    while (free >= 0 && static_cast<uint64_t>(free) >= bytes) {
      if (__atomic_compare_exchange_n(&g_->credit_free_bytes, &free, free - static_cast<int64_t>(bytes),
                                      false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        return true;
      }
    }
    return false;
  }
  void Give(int64_t bytes) { __atomic_add_fetch(&g_->credit_free_bytes, bytes, __ATOMIC_SEQ_CST); }
  void Use(uint64_t bytes) { __atomic_add_fetch(&g_->in_use_bytes, bytes, __ATOMIC_SEQ_CST); }
  void Leave(uint64_t bytes) { __atomic_sub_fetch(&g_->in_use_bytes, bytes, __ATOMIC_SEQ_CST); }

 private:
  gpumux_process_gpu* g_;
};

bool TakeFromCredit(int slot, uint64_t bytes) {
  Transfer transfer(Counters(slot));
  if (!transfer.Take(bytes)) return false;
  transfer.Use(bytes);
  return true;
}

// No daemon answers: the rule of gpumux_tenant_page. The limits page keeps what
// was granted last, so the sum over all processes stays within the guarantee.
bool TakeAsOrphan(int slot, uint64_t bytes) {
  if (__atomic_load_n(&Limits()->state, __ATOMIC_RELAXED) != GPUMUX_STATE_RUNNING) return false;
  const gpumux_gpu_limit& limit = Limits()->gpus[slot];
  const uint64_t guaranteed = __atomic_load_n(&limit.guaranteed_bytes, __ATOMIC_SEQ_CST);
  const uint64_t granted = __atomic_load_n(&limit.granted_bytes, __ATOMIC_SEQ_CST);
  uint64_t* taken = &TenantPage()->orphan_taken_bytes[slot];
  uint64_t now = __atomic_load_n(taken, __ATOMIC_SEQ_CST);
  for (;;) {
    if (granted > guaranteed || now > guaranteed - granted || bytes > guaranteed - granted - now)
      return false;
    if (__atomic_compare_exchange_n(taken, &now, now + bytes, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
      return true;
  }
}

void CountRefusal(uint64_t* counter, gpumux_process_gpu* g, uint64_t bytes) {
  __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&g->last_refused_bytes, bytes, __ATOMIC_RELAXED);
}

bool TakeCredit(int slot, uint64_t bytes, Refusal* refusal, bool reclaim) {
  *refusal = Refusal::kOwnLimit;
  const uint32_t state = __atomic_load_n(&Limits()->state, __ATOMIC_RELAXED);
  if (state == GPUMUX_STATE_RUNNING && TakeFromCredit(slot, bytes)) return true;
  const LookAfter look;
  CreditAnswer answer = {};
  if (!RequestCredit(slot, bytes, reclaim, TakeAsOrphan, &answer)) return false;
  if (answer.device_full) *refusal = Refusal::kDeviceFull;
  return answer.granted;
}

// A context's bytes are in use, but no credit's: a daemon counts them as overhead,
// by the number of contexts.
bool TakeForContext(int slot, uint64_t bytes) {
  if (__atomic_load_n(&Limits()->state, __ATOMIC_RELAXED) != GPUMUX_STATE_RUNNING) return false;
  gpumux_process_gpu* g = Counters(slot);
  if (!Transfer(g).Take(bytes) && !TakeAsOrphan(slot, bytes)) return false;
  __atomic_add_fetch(&g->overhead_bytes, bytes, __ATOMIC_SEQ_CST);
  return true;
}

void AddCommitted(gpumux_process_gpu* g, uint64_t bytes) {
  const uint64_t now = __atomic_add_fetch(&g->committed_bytes, bytes, __ATOMIC_SEQ_CST);
  uint64_t peak = __atomic_load_n(&g->peak_bytes, __ATOMIC_RELAXED);
  while (peak < now && !__atomic_compare_exchange_n(&g->peak_bytes, &peak, now, false, __ATOMIC_RELAXED,
                                                    __ATOMIC_RELAXED)) {
  }
}

}  // namespace

bool TryReserve(int slot, uint64_t bytes, Refusal* refusal, bool reclaim) {
  const bool part = PartsAreSet();
  if (part && !TakeFromPart(slot, bytes)) {
    *refusal = Refusal::kOwnPart;
    return false;
  }
  if (TakeCredit(slot, bytes, refusal, reclaim)) return true;
  if (part) SettlePart(slot, bytes);
  return false;
}

void CountRefused(int slot, uint64_t bytes, Refusal refusal) {
  gpumux_process_gpu* g = Counters(slot);
  uint64_t* counter = refusal == Refusal::kDeviceFull ? &g->refused_device_full
                      : refusal == Refusal::kOwnPart  ? &g->refused_own_part
                                                      : &g->refused_own_limit;
  CountRefusal(counter, g, bytes);
}

bool Reserve(int slot, uint64_t bytes) {
  Refusal refusal;
  if (TryReserve(slot, bytes, &refusal)) return true;
  CountRefused(slot, bytes, refusal);
  return false;
}

void Commit(int slot, uint64_t bytes) {
  AddCommitted(Counters(slot), bytes);
  if (PartsWereSet()) SettlePart(slot, bytes);
}

void Cancel(int slot, uint64_t bytes) {
  {
    Transfer transfer(Counters(slot));
    transfer.Leave(bytes);
    transfer.Give(static_cast<int64_t>(bytes));
  }
  if (PartsWereSet()) SettlePart(slot, bytes);
}

void Release(int slot, uint64_t bytes) {
  __atomic_sub_fetch(&Counters(slot)->committed_bytes, bytes, __ATOMIC_SEQ_CST);
  Transfer transfer(Counters(slot));
  transfer.Leave(bytes);
  transfer.Give(static_cast<int64_t>(bytes));
}

void ForceCommit(int slot, uint64_t bytes) {
  Refusal refusal;
  if (!TakeCredit(slot, bytes, &refusal, /*reclaim=*/false)) {
    Transfer transfer(Counters(slot));
    transfer.Use(bytes);
    transfer.Give(-static_cast<int64_t>(bytes));
  }
  AddCommitted(Counters(slot), bytes);
}

bool ChargeContext(int slot, uint64_t bytes) {
  bool granted = false;
  if (!RequestContext(slot, bytes, TakeForContext, &granted)) CountRefused(slot, bytes, Refusal::kOwnLimit);
  return granted;
}

void Settle(int slot, uint64_t before, uint64_t now, uint64_t reserved) {
  const uint64_t grown = now > before ? now - before : 0;
  const uint64_t covered = grown < reserved ? grown : reserved;
  if (covered) Commit(slot, covered);
  if (reserved > covered) Cancel(slot, reserved - covered);
  if (grown > covered) ForceCommit(slot, grown - covered);
  if (now < before) Release(slot, before - now);
}

void CountDeviceFull(int slot, uint64_t bytes) {
  gpumux_process_gpu* g = Counters(slot);
  CountRefusal(&g->refused_device_full, g, bytes);
}

}  // namespace gpumux::guard
