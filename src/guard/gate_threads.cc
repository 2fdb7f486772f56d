// SPDX-License-Identifier: Apache-2.0
#include "guard/gate_threads.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

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

constexpr uint64_t kAskTickNs = 5'000'000;         // of an owner, whose neighbours change
constexpr uint64_t kSeldomAskTickNs = 50'000'000;  // of others
constexpr uint64_t kLookAtConnectionNs = 100'000'000;
constexpr uint64_t kTryAgainNs = 1'000'000'000;  // to make a thread
constexpr uint64_t kLeaveNs = 1'000'000'000;     // for who is in the driver when the process ends
constexpr uint64_t kQuietNs = 50'000;
constexpr uint64_t kLongestNapNs = 2'000'000;

constinit Lock g_start_lock;
constinit bool g_opener = false, g_watcher = false, g_asker = false, g_at_exit = false;  // atomic
constinit uint64_t g_try_again_ns = 0;                                                   // atomic
constinit bool g_ended = false;                                                          // atomic

// One for the life of the opener: what it knows of the time that the gate was closed.
struct OpenTimes {
  uint64_t last_ns = 0;
  uint64_t second_ends_ns = 0;
  uint64_t open_ns = 0;          // of this second
  uint64_t closed_since_ns = 0;  // 0: it is open
  uint64_t forced_until_ns = 0;
  uint64_t beat = 0, beat_seen_ns = 0;  // of the daemon, by our own clock
};

// Closed by owners for too long, in this second or without a break?
bool IsDue(const OpenTimes& b, uint64_t now) {
  const GateBounds bounds = Bounds();
  const uint64_t least = bounds.min_open_ns < kSecondNs ? bounds.min_open_ns : kSecondNs;
  const uint64_t missing = b.open_ns < least ? least - b.open_ns : 0;
  const uint64_t rest = b.second_ends_ns > now ? b.second_ends_ns - now : 0;
  if (missing > 0 && rest <= missing + 2 * kTickNs) return true;
  return b.closed_since_ns != 0 && now - b.closed_since_ns >= bounds.max_closed_ns &&
         bounds.max_closed_ns > 0;
}

void Count(OpenTimes& b, gpumux_gate_page* page, uint64_t now, bool closed) {
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

void Tick(OpenTimes& b, gpumux_gate_page* page, uint64_t now) {
  constexpr uint64_t kOwners = (uint64_t{1} << GPUMUX_GATE_OWNERS) - 1;
  const uint64_t want = __atomic_load_n(&page->want, __ATOMIC_SEQ_CST);
  const uint64_t beat = __atomic_load_n(&page->turn_beat_ns, __ATOMIC_RELAXED);
  if (beat != b.beat || !(want & GPUMUX_GATE_TURN)) {
    b.beat = beat;
    b.beat_seen_ns = now;
  }
  // What nobody's bits are, and a turn that nobody ends any more.
  uint64_t lost = want & ~(kOwners | GPUMUX_GATE_TURN);
  if (now - b.beat_seen_ns > GPUMUX_TURN_STALE_NS) lost |= GPUMUX_GATE_TURN;
  if (lost) gpumux_gate_open(page, lost);
  const bool by_owners = (__atomic_load_n(&page->closed, __ATOMIC_SEQ_CST) & ~GPUMUX_GATE_TURN) != 0;
  Count(b, page, now, by_owners);
  if (b.forced_until_ns != 0) {
    // Who closes it now has not seen that it is forced, or wants its bit only.
    if (now >= b.forced_until_ns && !IsDue(b, now)) {
      b.forced_until_ns = 0;
      gpumux_gate_unforce(page);
    } else {
      gpumux_gate_force(page);
    }
    return;
  }
  if (by_owners && IsDue(b, now)) {
    b.forced_until_ns = now + kForcedNs;
    __atomic_add_fetch(&page->forcings, 1, __ATOMIC_RELAXED);
    gpumux_gate_force(page);
    return;
  }
  // Also where it was left forced: by a program that this process executed before.
  gpumux_gate_unforce(page);
}

void Open(gpumux_gate_page* page) { gpumux_gate_open(page, ~uint64_t{0}); }

void* Opener(void*) {
  gpumux_gate_page* const page = OwnGate();
  OpenTimes times;
  times.last_ns = NowNs();
  uint64_t look_ns = 0;
  for (;;) {
    if (GateHasEnded()) {
      Open(page);
      Nap(kTickNs);
      continue;
    }
    const uint64_t now = NowNs();
    Tick(times, page, now);
    const bool wanted = (__atomic_load_n(&page->want, __ATOMIC_SEQ_CST) |
                         __atomic_load_n(&page->closed, __ATOMIC_SEQ_CST)) != 0;
    if (wanted && now >= look_ns) {
      if (const unsigned dead = ClearDeadOwners())
        __atomic_add_fetch(&page->dead_bits, dead, __ATOMIC_RELAXED);
      look_ns = now + kLookForDeadNs;
    }
    const bool may_be = (LaunchWord() & (GPUMUX_LAUNCH_GATED | GPUMUX_LAUNCH_TURNS)) != 0;
    Nap(wanted || times.forced_until_ns ? kTickNs : may_be ? kOpenTickNs : kIdleTickNs);
  }
}

// Programs that wait for their work need nobody to look; those that poll, or never wait, do.
void* Watcher(void*) {
  uint64_t nap = kLongestNapNs;
  bool polls = false;
  for (;;) {
    if (GateHasEnded()) {
      Nap(kIdleTickNs);
      continue;
    }
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

void* Asker(void*) {
  uint64_t look_ns = 0;
  for (;;) {
    if (const uint64_t now = NowNs(); now >= look_ns) {
      LookAtConnection();
      look_ns = now + kLookAtConnectionNs;
    }
    if (GatesAreStale() && FetchGates()) StartGateThreads();
    Nap(IsOwner() || !OwnGate() ? kAskTickNs : kSeldomAskTickNs);
  }
}

bool Runs(const bool& thread) { return __atomic_load_n(&thread, __ATOMIC_RELAXED); }
void Start(bool& thread, ThreadBody body) {
  if (!thread) __atomic_store_n(&thread, StartThread(body), __ATOMIC_RELAXED);
}

bool AllRun() {
  if (!Runs(g_asker)) return false;
  return !OwnGate() || (Runs(g_watcher) && (Runs(g_opener) || IsOwner()) && Runs(g_at_exit));
}

}  // namespace

void StartGateThreads() {
  if (AllRun() || NowNs() < __atomic_load_n(&g_try_again_ns, __ATOMIC_RELAXED)) return;
  Held held(g_start_lock);
  Start(g_asker, Asker);
  if (OwnGate()) {
    Start(g_watcher, Watcher);
    if (!IsOwner()) Start(g_opener, Opener);
    // After the driver's own, which was registered before there was a context: it runs before it.
    if (!g_at_exit) __atomic_store_n(&g_at_exit, atexit(EndGate) == 0, __ATOMIC_RELAXED);
  }
  if (!AllRun()) __atomic_store_n(&g_try_again_ns, NowNs() + kTryAgainNs, __ATOMIC_RELAXED);
}

bool OpenerRuns() { return Runs(g_opener); }

bool GateHasEnded() { return __atomic_load_n(&g_ended, __ATOMIC_SEQ_CST); }

void EndGate() {
  gpumux_gate_page* page = OwnGate();
  // The pages are not mapped in a child that was made past our notice.
  if (!page || syscall(SYS_getpid) != GatePid()) return;
  __atomic_store_n(&g_ended, true, __ATOMIC_SEQ_CST);
  Open(page);
  if (IsOwner()) OpenGates();
  // The driver takes itself apart now: nobody of ours may be in it.
  const uint64_t until = NowNs() + kLeaveNs;
  while (!NobodyInStreams() && NowNs() < until) Nap(kTickNs);
}

void ForgetGateThreads() {
  g_start_lock.Reset();
  g_opener = g_watcher = g_asker = g_ended = false;
  g_try_again_ns = 0;
}

}  // namespace gpumux::guard
