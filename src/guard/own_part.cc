// SPDX-License-Identifier: Apache-2.0
#include "guard/own_part.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "gpumux/abi/pages.h"
#include "guard/session.h"

namespace gpumux::guard {

constinit uint32_t g_parts_set = 0;
constinit uint32_t g_parts_ever_set = 0;

namespace {

// As the daemon waits for calls under way before it refuses.
constexpr int kYields = 50;
constexpr int kNaps = 2000;  // of a millisecond

struct Part {
  uint64_t fraction_bits;  // of a double; meaningful if the slot's bit is in g_parts_set
  uint64_t under_way;
};
constinit Part g_parts[GPUMUX_MAX_GPUS] = {};
constinit __thread uint64_t t_counted[GPUMUX_MAX_GPUS] = {};

uint64_t Settled(int slot) {
  const gpumux_process_gpu* g = Counters(slot);
  return __atomic_load_n(&g->committed_bytes, __ATOMIC_SEQ_CST) +
         __atomic_load_n(&g->overhead_bytes, __ATOMIC_SEQ_CST);
}

void WaitABit(int tries) {
  if (tries < kYields) {
    sched_yield();
    return;
  }
  const timespec nap = {0, 1'000'000};
  nanosleep(&nap, nullptr);
}

}  // namespace

void SetPart(int slot, double fraction) {
  const uint32_t bit = 1u << slot;
  if (fraction >= 1) {
    __atomic_and_fetch(&g_parts_set, ~bit, __ATOMIC_SEQ_CST);
    return;
  }
  uint64_t bits;
  memcpy(&bits, &fraction, sizeof bits);
  __atomic_store_n(&g_parts[slot].fraction_bits, bits, __ATOMIC_SEQ_CST);
  __atomic_store_n(&g_parts_ever_set, 1, __ATOMIC_SEQ_CST);
  __atomic_or_fetch(&g_parts_set, bit, __ATOMIC_SEQ_CST);
}

uint64_t PartBytes(int slot) {
  if (!(__atomic_load_n(&g_parts_set, __ATOMIC_SEQ_CST) & 1u << slot)) return ~0ull;
  const uint64_t bits = __atomic_load_n(&g_parts[slot].fraction_bits, __ATOMIC_SEQ_CST);
  double fraction;
  memcpy(&fraction, &bits, sizeof fraction);
  // Limits are far below 2^53, so the product is exact to the byte.
  const uint64_t limit = __atomic_load_n(&Limits()->gpus[slot].limit_bytes, __ATOMIC_SEQ_CST);
  return static_cast<uint64_t>(static_cast<double>(limit) * fraction);
}

uint64_t OwnBytes(int slot) {
  return Settled(slot) + __atomic_load_n(&g_parts[slot].under_way, __ATOMIC_SEQ_CST);
}

bool TakeFromPart(int slot, uint64_t bytes) {
  uint64_t* under_way = &g_parts[slot].under_way;
  for (int tries = 0;; tries++) {
    const uint64_t part = PartBytes(slot);
    uint64_t now = __atomic_load_n(under_way, __ATOMIC_SEQ_CST);
    // Read after `now`: a call that is committed in between is counted twice here,
    // never missed, and the exchange fails.
    const uint64_t settled = Settled(slot);
    const bool fits_alone = bytes <= part && settled <= part - bytes;
    if (fits_alone && now <= part - bytes - settled) {
      if (__atomic_compare_exchange_n(under_way, &now, now + bytes, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
        t_counted[slot] += bytes;
        return true;
      }
      continue;
    }
    if (!fits_alone || tries >= kYields + kNaps) return false;
    WaitABit(tries);
  }
}

void SettlePart(int slot, uint64_t bytes) {
  const uint64_t counted = t_counted[slot] < bytes ? t_counted[slot] : bytes;
  if (counted == 0) return;
  t_counted[slot] -= counted;
  __atomic_sub_fetch(&g_parts[slot].under_way, counted, __ATOMIC_SEQ_CST);
}

bool PartHasRoom(int slot, uint64_t bytes) {
  const uint64_t part = PartBytes(slot);
  const uint64_t own = OwnBytes(slot);
  return bytes <= part && own <= part - bytes;
}

void ForgetParts() {
  g_parts_set = 0;
  g_parts_ever_set = 0;
  memset(g_parts, 0, sizeof g_parts);
  memset(t_counted, 0, sizeof t_counted);
}

}  // namespace gpumux::guard
