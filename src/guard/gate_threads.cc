// SPDX-License-Identifier: Apache-2.0
#include "guard/gate_threads.h"

#include <stdlib.h>

#include "gpumux/abi/gate.h"
#include "guard/clock.h"
#include "guard/gate_pages.h"
#include "guard/lock.h"
#include "guard/session.h"

namespace gpumux::guard {

namespace {

constexpr uint64_t kTickNs = 1'000'000;       // while somebody wants the gate closed
constexpr uint64_t kOpenTickNs = 5'000'000;   // while nobody does
constexpr uint64_t kIdleTickNs = 50'000'000;  // without work, or anybody who could close
constexpr uint64_t kLookForDeadNs = 30'000'000;
constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kForcedNs = 10'000'000;  // at the least, once the longest closure is over

constexpr uint64_t kLookAtConnectionNs = 100'000'000;
constexpr uint64_t kQuietNs = 50'000;
constexpr uint64_t kLongestNapNs = 2'000'000;

constinit Lock g_start_lock;
constinit bool g_opener = false, g_watcher = false, g_at_exit = false;
constinit bool g_ended = false;  // atomic

// One for the life of the opener: what it knows of the time that the gate was closed.
struct Bounds {
  uint64_t last_ns = 0;
  uint64_t second_ends_ns = 0;
  uint64_t open_ns = 0;          // of this second
  uint64_t closed_since_ns = 0;  // 0: it is open
  uint64_t forced_until_ns = 0;
};

// Closed by owners for too long, in this second or without a break?
bool IsDue(const Bounds& b, const gpumux_gate_page& page, uint64_t now) {
  const uint64_t least = page.min_open_ns < kSecondNs ? page.min_open_ns : kSecondNs;
  const uint64_t missing = b.open_ns < least ? least - b.open_ns : 0;
  const uint64_t rest = b.second_ends_ns > now ? b.second_ends_ns - now : 0;
  if (missing > 0 && rest <= missing + 2 * kTickNs) return true;
  return b.closed_since_ns != 0 && now - b.closed_since_ns >= page.max_closed_ns && page.max_closed_ns > 0;
}

void Count(Bounds& b, gpumux_gate_page* page, uint64_t now, bool closed) {
  // A process that did not run for a while learnt nothing of that time.
  const uint64_t passed = now - b.last_ns < kSecondNs ? now - b.last_ns : 0;
  b.last_ns = now;
  if (now >= b.second_ends_ns) {
    b.second_ends_ns = now + kSecondNs;
    b.open_ns = 0;
  }
  if (!closed) {
    b.open_ns += passed;
    b.closed_since_ns = 0;
    return;
  }
  if (b.closed_since_ns == 0) b.closed_since_ns = now;
  __atomic_add_fetch(&page->closed_ns, passed, __ATOMIC_RELAXED);
}

void Tick(Bounds& b, gpumux_gate_page* page, uint64_t now) {
  const uint64_t turn = __atomic_load_n(&page->want, __ATOMIC_SEQ_CST) & GPUMUX_GATE_TURN;
  const uint64_t beat = __atomic_load_n(&page->turn_beat_ns, __ATOMIC_RELAXED);
  if (turn && (now < beat ? 0 : now - beat) > GPUMUX_TURN_STALE_NS) gpumux_gate_open(page, turn);
  const bool by_owners = (__atomic_load_n(&page->closed, __ATOMIC_SEQ_CST) & ~GPUMUX_GATE_TURN) != 0;
  Count(b, page, now, by_owners);
  if (b.forced_until_ns != 0) {
    // Who closes it now has not seen that it is forced, or wants its bit only.
    if (now >= b.forced_until_ns && !IsDue(b, *page, now)) {
      b.forced_until_ns = 0;
      gpumux_gate_unforce(page);
    } else {
      gpumux_gate_force(page);
    }
    return;
  }
  if (by_owners && IsDue(b, *page, now)) {
    b.forced_until_ns = now + kForcedNs;
    __atomic_add_fetch(&page->forcings, 1, __ATOMIC_RELAXED);
    gpumux_gate_force(page);
    return;
  }
  gpumux_gate_repair(page);
}

void Open(gpumux_gate_page* page) { gpumux_gate_open(page, ~uint64_t{0}); }

void* Opener(void*) {
  gpumux_gate_page* const page = OwnGate();
  Bounds bounds;
  bounds.last_ns = NowNs();
  uint64_t look_ns = 0;
  for (;;) {
    if (__atomic_load_n(&g_ended, __ATOMIC_RELAXED)) {
      Open(page);
      Nap(kTickNs);
      continue;
    }
    const uint64_t now = NowNs();
    Tick(bounds, page, now);
    const bool wanted = (__atomic_load_n(&page->want, __ATOMIC_SEQ_CST) |
                         __atomic_load_n(&page->closed, __ATOMIC_SEQ_CST)) != 0;
    if (wanted && now >= look_ns) {
      if (const unsigned dead = ClearDeadOwners())
        __atomic_add_fetch(&page->dead_bits, dead, __ATOMIC_RELAXED);
      look_ns = now + kLookForDeadNs;
    }
    const bool may_be = (LaunchWord() & (GPUMUX_LAUNCH_GATED | GPUMUX_LAUNCH_TURNS)) != 0;
    Nap(wanted || bounds.forced_until_ns ? kTickNs : may_be ? kOpenTickNs : kIdleTickNs);
  }
}

// Programs that wait for their work need nobody to look; those that poll, or never wait, do.
void* Watcher(void*) {
  uint64_t nap = kLongestNapNs;
  uint64_t look_ns = 0;
  bool polls = false;
  for (;;) {
    if (const uint64_t now = NowNs(); now >= look_ns) {
      LookAtConnection();
      look_ns = now + kLookAtConnectionNs;
    }
    if (GatesAreStale()) FetchGates();
    if (!GateIsDirty()) {
      DropStaleHint();
      Nap(polls                                                          ? kQuietNs
          : LaunchWord() & (GPUMUX_LAUNCH_LATENCY | GPUMUX_LAUNCH_TURNS) ? kLongestNapNs
                                                                         : kIdleTickNs);
      nap = polls ? kQuietNs : kLongestNapNs / 4;
      continue;
    }
    const uint64_t launches = GateLaunches();
    Nap(nap);
    if (launches != GateLaunches()) {
      nap = polls ? kQuietNs : kLongestNapNs / 4;
      continue;
    }
    if (!GateIsDirty()) {
      polls = false;
    } else if (LookAtStreams()) {
      polls = true;
    } else {
      nap = nap < kLongestNapNs / 2 ? nap * 2 : kLongestNapNs;
    }
  }
}

}  // namespace

void StartGateThreads() {
  if (!OwnGate()) return;
  Held held(g_start_lock);
  if (!g_watcher) g_watcher = StartThread(Watcher);
  if (!g_opener && !IsOwner()) g_opener = StartThread(Opener);
  // After the driver's own, which was registered before there was a context: it runs before it.
  if (!g_at_exit && !IsOwner()) g_at_exit = atexit(EndGate) == 0;
}

void EndGate() {
  __atomic_store_n(&g_ended, true, __ATOMIC_RELAXED);
  if (gpumux_gate_page* page = OwnGate()) Open(page);
}

void ForgetGateThreads() {
  g_start_lock.Reset();
  g_opener = g_watcher = g_ended = false;
}

}  // namespace gpumux::guard
