// SPDX-License-Identifier: Apache-2.0
#include "daemon/turn_thread.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "gpumux/abi/gate.h"

namespace gpumux::daemon {

namespace {

using Time = core::Turns::Time;

// Four times before it is stale, and once more.
constexpr Time kBeat = std::chrono::nanoseconds(GPUMUX_TURN_STALE_NS) / 5;

Time Now() { return SystemClock().Now(); }

}  // namespace

TurnThread::TurnThread(const core::Turns::Times& times, TurnWaits& waits)
    : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      waits_(waits),
      turns_(TurnRoster::kMost, times),
      slots_(TurnRoster::kMost),
      seen_(TurnRoster::kMost) {
  // Signals are the loop's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TurnThread::~TurnThread() {
  stop_ = true;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
  Free(coming_.exchange(nullptr));
  Free(gone_.exchange(nullptr));
  Free(roster_);
}

void TurnThread::Free(TurnRoster* roster) {
  while (roster) delete std::exchange(roster, roster->next);
}

void TurnThread::Take(std::unique_ptr<TurnRoster> roster) {
  Free(coming_.exchange(roster.release()));  // one that was never looked at
  Free(gone_.exchange(nullptr));
  ::eventfd_write(wake_.get(), 1);
}

void TurnThread::Run() {
  ::prctl(PR_SET_NAME, "gpumuxd-turns");
  ::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; else each sleep is 50 us longer
  while (!stop_) {
    TakeRoster();
    Look();
    const Time now = Now();
    const core::Turns::Answer answer = turns_.Update(now, seen_);
    SetGates();
    for (const auto& event : answer.events) Note(event);
    NoteBegun();
    if (now - beat_ >= kBeat) {
      beat_ = now;
      for (const Slot& slot : slots_) {
        if (slot.serial == 0) continue;
        for (const auto& page : slot.tenant->pages) page->Beat(static_cast<uint64_t>(now.count()));
      }
    }
    Publish();
    Sleep(answer.next == core::Turns::kForever ? answer.next : std::min(answer.next, beat_ + kBeat));
  }
  for (const Slot& slot : slots_) {
    if (slot.serial == 0) continue;
    for (const auto& page : slot.tenant->pages) page->OpenForTurn();
  }
}

void TurnThread::TakeRoster() {
  TurnRoster* after = coming_.exchange(nullptr);
  if (!after) return;
  Replace(*after);
  if (TurnRoster* before = std::exchange(roster_, after)) {
    before->next = gone_.load();
    while (!gone_.compare_exchange_weak(before->next, before)) {
    }
  }
}

void TurnThread::Replace(const TurnRoster& after) {
  const auto in = [](const auto& tenants, uint64_t serial) {
    return std::find_if(tenants.begin(), tenants.end(),
                        [&](const TurnTenant& tenant) { return tenant.serial == serial; });
  };
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.serial == 0) continue;
    const auto now = in(after.tenants, slot.serial);
    if (now != after.tenants.end() && now->gpus == slot.tenant->gpus) {
      if (!(now->share == slot.tenant->share)) turns_.Change(i, now->share);
      slot.tenant = &*now;
      continue;
    }
    for (const auto& page : slot.tenant->pages) page->OpenForTurn();
    turns_.Remove(i);
    slot = {};
    seen_[i] = {};
  }
  for (const TurnTenant& tenant : after.tenants) {
    const auto has = [&](const Slot& slot) { return slot.serial == tenant.serial; };
    if (std::any_of(slots_.begin(), slots_.end(), has)) continue;
    const auto room = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.serial == 0; });
    if (room == slots_.end()) return;  // the loop sends no more than there is room for
    *room = {tenant.serial, &tenant, false, false, Time(tenant.figures->billed_ns.load()), std::nullopt};
    turns_.Add(static_cast<size_t>(room - slots_.begin()), tenant.share, tenant.gpus);
  }
  // Pages that are new have nobody's word, and no beat.
  for (const Slot& slot : slots_) {
    if (!slot.closed) continue;
    for (const auto& page : slot.tenant->pages) page->CloseForTurn();
  }
  beat_ = {};
}

void TurnThread::Look() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].serial == 0) continue;
    core::Turns::Seen seen;
    for (const auto& page : slots_[i].tenant->pages) {
      const GatePage::Work work = page->Look();
      seen.wants |= work.wants;
      seen.in_flight |= work.in_flight;
      seen.progress += work.progress;
    }
    seen_[i] = Believe(i, seen) ? seen : core::Turns::Seen{.progress = seen.progress};
  }
}

// Not what the page of a stopped program says, once its work has had the grace time to end:
// nobody there is left to see that it has, or to use a turn. Until something happens.
bool TurnThread::Believe(size_t i, const core::Turns::Seen& seen) {
  Slot& slot = slots_[i];
  if (!slot.tenant->figures->stopped.load(std::memory_order_relaxed))
    slot.stopped_at.reset();
  else if (turns_.StateOf(i) == core::TurnState::kOverrunning || !seen.in_flight)
    slot.stopped_at = seen.progress;
  return slot.stopped_at != seen.progress;
}

void TurnThread::SetGates() {
  // First closed, then opened: never two at once by this.
  for (const bool open : {false, true}) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& slot = slots_[i];
      if (slot.serial == 0 || turns_.Open(i) != open || slot.closed != open) continue;
      slot.closed = !open;
      for (const auto& page : slot.tenant->pages) {
        if (open)
          page->OpenForTurn();
        else
          page->CloseForTurn();
      }
    }
  }
}

void TurnThread::Note(const core::Turns::Event& event) {
  const Slot& slot = slots_[event.tenant];
  if (slot.serial == 0) return;
  TurnFigures& figures = *slot.tenant->figures;
  ++figures.turns;
  if (event.why == core::TurnEnd::kOverran) ++figures.overran;
  if (event.why == core::TurnEnd::kUnused) ++figures.unused;
}

void TurnThread::NoteBegun() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.serial == 0) continue;
    const bool holds = turns_.StateOf(i) == core::TurnState::kHolding;
    if (holds && !slot.held) {
      const Time wait = turns_.WaitOf(i);
      waits_.Observe(wait);
      slot.tenant->figures->waited_ns.fetch_add(wait.count(), std::memory_order_relaxed);
    }
    slot.held = holds;
  }
}

void TurnThread::Publish() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].serial == 0) continue;
    TurnFigures& figures = *slots_[i].tenant->figures;
    figures.state.store(turns_.StateOf(i), std::memory_order_relaxed);
    figures.billed_ns.store((slots_[i].billed_before + turns_.Billed(i)).count(), std::memory_order_relaxed);
    figures.part.store(turns_.PartOf(i), std::memory_order_relaxed);
  }
}

void TurnThread::Sleep(Time until) const {
  pollfd wake{.fd = wake_.get(), .events = POLLIN, .revents = 0};
  timespec left{};
  if (until != core::Turns::kForever) {
    const Time rest = std::max(Time(0), until - Now());
    left = {.tv_sec = rest / std::chrono::seconds(1), .tv_nsec = (rest % std::chrono::seconds(1)).count()};
  }
  if (::ppoll(&wake, 1, until == core::Turns::kForever ? nullptr : &left, nullptr) > 0) {
    eventfd_t count = 0;
    ::eventfd_read(wake_.get(), &count);
  }
}

}  // namespace gpumux::daemon
