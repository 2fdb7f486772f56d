// SPDX-License-Identifier: Apache-2.0
//
// Mode turns: which tenants' gates are open now. Pure: what the tenants do and
// what time it is come in, what to do and when to ask again come out.
//
// One object decides for a machine. A tenant has its turn on all its GPUs
// together; tenants that share no GPU have turns at the same time. A GPU that at
// most one tenant wants has no turns: all gates are open.
//
// Picture, of one tenant ("rival": another that wants one of its GPUs)
//
//            wants                 its GPUs are free, and nobody is before it
//    Idle ─────────▶ Waiting ───────────────────────────────▶ Holding ──┐ its time is over and
//     ▲ ▲              ▲  ▲                                     │  ▲     │ it is the next again
//     │ │ ended        │  │ nothing was                         │  └─────┘
//     │ └──────────────┤  │ in flight    time over and a rival, │
//     │                │  └───────────── idle, at its ceiling, ◀┘
//     │                │                 did not use it, made way
//     │         ended  │                          │ in flight
//     │   ┌────────────┴─── Draining ◀────────────┘
//     └───┤                    │ grace time
//         └───────────────── Overrunning    (its gate is closed, the next has its turn beside it)
//
// A gate is open in Holding, and in Idle where at most one other tenant wants the
// GPUs; not while that one does and the tenant has wanted them within kOthers: or
// a program with short pauses would work beside the holder after each of them.
//
// Who is next. On each GPU, work done divided by the tenant's part of the GPU
// gives its tag; the least tag goes first (start-time fair queueing). A tag is
// never behind those of the tenants that wanted the GPU meanwhile: who did not
// want it has saved up nothing, and owes at most what it used last. What it was
// behind by when it went it is behind by when it comes back, a turn at most: or a
// training, which waits at the end of each step and so ends its turn early, would
// lose the rest of that turn each time. A turn's
// time counts from the opening of the gate until nothing is in flight any more,
// however long that takes: so the parts are right whatever the kernels' length.
//
// Parts: core/turn_share.h. Maxima hold even where the GPU would be idle: in every
// window (kWindow) at most the maximum, kBurst, and what was in flight at the
// turn's end (which is paid back). Minima: in every window in which the tenant
// wants the GPU throughout, at least the minimum less one turn.
//
// How long. With e the tenant's part and s the smallest part on the GPU:
// kOthers * e / (1 - s), at least kShortest. For n equal tenants: 20 ms for two,
// 10 for three, 6.7 for four, 5 from five on; so that each waits 20 ms up to five,
// and (n - 1) * kShortest above, and what is in flight at the ends of turns.
// A tenant with a small part waits kShortest / e for its next one. A tenant that
// comes back from idle and owes nothing ends a turn that has lasted kShortest.
//
// Several GPUs. A tenant that is next, and of whose GPUs some are not free yet,
// has the others kept; until the last one's turn ends there, tenants behind it may
// have them, unbilled in tags: it is time that nobody else could have used.
//
// One thread at a time. Update() allocates nothing.
#pragma once

#include <array>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/turn_share.h"

namespace gpumux::core {

enum class TurnState : uint8_t { kIdle, kWaiting, kHolding, kDraining, kOverrunning };

enum class TurnEnd : uint8_t {
  kOver,     // its time was over, and another's had come
  kIdle,     // handed back: nothing to do
  kUnused,   // it wanted the GPU, and nothing of it ran
  kCeiling,  // it has had its maximum
  kMadeWay,  // for a tenant of several GPUs whose others are free now
  kOverran,  // what was in flight did not end in the grace time
  kLeft,     // the tenant has ended
};
const char* Name(TurnEnd why);

class Turns {
 public:
  using Time = std::chrono::nanoseconds;
  using Gpus = std::bitset<64>;  // numbered by the caller, the same way for all

  static constexpr Time kForever = Time::max();
  static constexpr Time kWindow = std::chrono::seconds(1);
  static constexpr Time kOthers = std::chrono::milliseconds(20);
  static constexpr Time kShortest = std::chrono::milliseconds(5);
  // A maximum is counted as a bucket: so much may be had at once, and after it
  // was empty the next turn needs so much in it again.
  static constexpr Time kBurst = std::chrono::milliseconds(10);
  static constexpr Time kRefill = std::chrono::milliseconds(5);

  struct Times {
    Time grace = std::chrono::milliseconds(500);  // for what is in flight
    Time idle_after =
        std::chrono::microseconds(400);  // a holder with nothing to do; gaps between launches are shorter
    Time unused_after = std::chrono::milliseconds(5);  // a holder of which nothing runs
    Time unused_again = std::chrono::seconds(1);       // the longest until such a tenant is tried again
    // How often to ask: while a turn ends, while there are turns or a ceiling, else.
    Time ask_draining = std::chrono::microseconds(50);
    Time ask_held = std::chrono::microseconds(250);
    Time ask_ceiling = std::chrono::milliseconds(1);
    Time ask_free = std::chrono::milliseconds(5);
    // An interval that was longer was the caller's sleep, and counts as so long.
    Time longest_interval = std::chrono::milliseconds(100);
  };

  // What is seen of a tenant, at the time of the update.
  struct Seen {
    bool wants = false;      // has work, on the GPU or held back by its gate
    bool in_flight = false;  // of it, something is past the gate
    uint64_t progress = 0;   // changes whenever something is launched or ends
  };

  struct Event {
    size_t tenant;
    TurnEnd why;
    Time ran;      // with its gate open
    Time drained;  // after it
    Time billed;
  };

  struct Answer {
    Time next = kForever;           // when to ask again, at the latest
    std::span<const Event> events;  // turns that ended while others wanted the GPU
  };

  // Tenants are numbers below `tenants`, chosen by the caller.
  Turns(size_t tenants, Times times);
  explicit Turns(size_t tenants) : Turns(tenants, Times()) {}

  void Add(size_t tenant, const TurnShare& share, const Gpus& gpus);
  void Change(size_t tenant, const TurnShare& share);
  void Remove(size_t tenant);

  // `seen` has an entry for each tenant number. `now` never goes back. The events
  // are there until the next call of anything.
  Answer Update(Time now, std::span<const Seen> seen);

  bool Has(size_t tenant) const { return tenants_[tenant].there; }
  bool Open(size_t tenant) const { return tenants_[tenant].open; }
  TurnState StateOf(size_t tenant) const { return tenants_[tenant].state; }
  // GPU time of it so far; of a tenant of several GPUs, on each.
  Time Billed(size_t tenant) const { return tenants_[tenant].billed; }
  // What the turn that it holds was waited for.
  Time WaitOf(size_t tenant) const { return tenants_[tenant].held_since - tenants_[tenant].waiting_since; }
  // Its part of its most crowded GPU while those want it that do now.
  double PartOf(size_t tenant) const { return PartOf(tenants_[tenant]); }

 private:
  static constexpr size_t kMaxGpus = 64;

  struct Tenant {
    bool there = false;
    TurnShare share;
    std::vector<size_t> gpus;  // ascending
    Gpus gpu_set;

    TurnState state = TurnState::kIdle;
    bool open = true;
    Seen seen;
    bool busy = false;       // by what was seen, and not `given_up`
    bool arrived = false;    // began to compete in this update
    bool competed = false;   // after the last update
    bool next = false;       // chosen, and others are draining
    bool contended = false;  // of its turn: others wanted the GPU
    bool behind = false;     // of its turn: somebody before it could not have had it
    bool at_ceiling = false;
    unsigned unused = 0;  // turns in a row
    TurnEnd why = TurnEnd::kIdle;
    Time waiting_since{}, held_since{}, closed_since{}, idle_since{}, progress_at{};
    Time until{};                    // of its turn; kForever: nobody else wants its GPUs
    Time given_up_until{};           // it did not use its turns
    Time billed{}, billed_before{};  // before this turn
    double bucket_ns = 0;
    // By the position in `gpus`. `credits`: by how much it was behind when it stopped competing.
    std::vector<double> tags, parts, credits;

    bool Wants() const { return busy || state == TurnState::kHolding; }
    // For the GPUs, now.
    bool Competes() const { return Wants() && !(at_ceiling && state != TurnState::kHolding); }
    // May be given a turn.
    bool Eligible() const {
      return (state == TurnState::kWaiting || (state == TurnState::kDraining && seen.wants)) && busy &&
             !at_ceiling;
    }
    bool Shares(const Tenant& other) const { return (gpu_set & other.gpu_set).any(); }
  };
  struct Gpu {
    double least_tag = 0;
    size_t competing = 0;  // tenants
    size_t concerned = 0;  // and those that have just been
    size_t users = 0;      // whose time is counted
    double smallest_part = 1;
    // While choosing.
    bool taken = false;
    Time free_at{};       // the end of that turn
    size_t draining = 0;  // tenants
    Time kept_from{};     // for a tenant of several GPUs
  };

  static double PartOf(const Tenant& tenant);
  double Key(const Tenant& tenant) const;
  bool WasBusy(const Tenant& tenant) const;
  bool HasRival(const Tenant& tenant) const;
  bool MayYield(const Tenant& holder) const { return now_ >= holder.until || holder.behind; }
  Time TurnOf(const Tenant& tenant) const;
  Time FurtherTurnOf(const Tenant& holder) const;

  static double UsedOf(const Tenant& tenant, const Seen& seen);
  void Bill(Time interval, std::span<const Seen> seen);
  void Charge(Tenant& tenant, double spent_ns, bool to_tags);
  void See(Tenant& tenant, const Seen& seen);
  void SeeDrain(Tenant& tenant);
  void Arrive(Tenant& tenant);
  void Divide();
  void AdvanceTags();
  void ComeOrGo(Tenant& tenant);
  void EndTurn(Tenant& holder);
  void LimitTurn(Tenant& holder) const;
  void Choose();
  void PrepareGpus();
  void MakeOrder();
  void ChooseFor(size_t tenant);
  void StayOrYield(size_t tenant, Time kept_from);
  void StartOrWait(size_t tenant, bool others_drain, Time kept_from);
  void Take(size_t tenant, Time free_at);
  void Close(Tenant& tenant, TurnEnd why);
  void Drain(Tenant& tenant);
  Event Report(const Tenant& tenant, TurnEnd why) const;
  void SetGates();
  Time Next() const;

  const Times times_;
  Time now_{};
  bool divided_ = false;
  std::vector<Tenant> tenants_;
  std::vector<size_t> there_;  // ascending
  std::array<Gpu, kMaxGpus> gpus_;
  std::vector<Event> events_, left_;
  // Room for Update().
  std::vector<size_t> order_;
  std::vector<double> keys_;
  std::vector<TurnShare> shares_;
  std::vector<double> parts_;
};

}  // namespace gpumux::core
