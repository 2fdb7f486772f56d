// SPDX-License-Identifier: Apache-2.0
//
// What the daemon knows of a tenant and of each of its processes. Plain data;
// tenants.h keeps them, the other parts change them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "core/idle.h"
#include "core/ledger.h"
#include "core/promise.h"
#include "daemon/event_loop.h"
#include "daemon/gate_page.h"
#include "daemon/pages.h"
#include "daemon/refusal.h"
#include "daemon/run_request.h"

namespace gpumux::daemon {

struct TurnFigures;  // turn_roster.h

using Time = std::chrono::nanoseconds;  // of Clock::Now

// A process for good: a pid is used again, with another start time.
struct ProcessName {
  pid_t pid = 0;
  uint64_t start_time = 0;
  auto operator<=>(const ProcessName&) const = default;
};

// What the keeper holds for a process, beyond its death (held_descriptors.h).
struct HeldOfProcess {
  unsigned round = 0;        // of its messages
  uint32_t coming = 0;       // of this round, in all
  uint32_t came = 0;         // of these
  bool failed = false;       // some that came did not get to the keeper
  uint32_t held = 0;         // of the last round that came whole
  std::string group;         // in the keeper, of this round
  std::string group_before;  // of the last whole one, while this one comes
  Time hold{};               // how long they outlive it, as the keeper was told
  bool lost = false;         // all of it, with the keeper
  bool under_way = false;    // it died with work under way

  bool IsWhole() const { return came == coming && !failed; }
};

// Of a process that asks for a place as a client of MPS and gets none (mps_places.h).
struct WaitForPlace {
  std::string reason;
  Time since{}, asked{};  // first, last
};

// One process of a tenant: one that said hello, or one that NVML shows on a GPU.
struct Member {
  struct Gpu {
    uint32_t contexts = 0;          // as the guard said last
    uint32_t pending_contexts = 0;  // charged, nothing heard of them yet
    uint64_t real_overhead_bytes = 0;
    unsigned jumps = 0;                   // successive readings that found far more overhead than before
    uint64_t jump_bytes = 0;              // the least that these found
    std::optional<uint64_t> own_bytes;    // NVML's figure at the last reading; nullopt: not listed
    std::optional<Time> unguarded_since;  // listed by NVML while no guard is in force
    uint64_t seen_own_limit = 0, seen_own_part = 0,
             seen_device_full = 0;  // refusals in its page that were looked at
    // Listed counts: its guard may not have come to this daemon yet.
    bool IsUsed() const { return contexts > 0 || own_bytes.has_value(); }
    bool mps_place = false;  // it has one, as client of MPS: a context, or it makes one
    std::optional<WaitForPlace> waits;
  };
  core::ProcessKey key = 0;
  ProcessName process;
  std::string name;
  UniqueFd pidfd;
  EventLoop::Watch death;
  std::optional<ProcessPage> page;  // nullopt: never said hello
  unsigned sessions = 0;            // open connections of its guard
  bool guard_before = false;        // without `page`: it has one of a daemon before this one
  std::vector<Gpu> gpus;            // by slot
  HeldOfProcess held;
  std::shared_ptr<GatePage> gate;     // null: it did not ask for one
  std::optional<unsigned> owner_bit;  // as one who closes others' gates
  std::optional<Time> died;           // its bytes are returned once NVML shows them free
};

// A process of a tenant whose program has ended: it holds nothing on a GPU, but
// may still come to, so the lease lives as long as it does.
struct LeftBehind {
  UniqueFd pidfd;
  EventLoop::Watch death;
};

// Guaranteed bytes on one GPU that may not be there (strangers.h).
struct Risk {
  uint64_t bytes = 0;  // at the last reading
  std::string why;     // of the last time that there were any
  bool told = false;   // as an event, and not withdrawn yet
  std::optional<Time> covered_since;
};

enum class TenantState { kStarting, kRunning, kStopping, kEnded };
std::string_view Name(TenantState state);

struct Refusals {
  uint64_t own_limit = 0;
  uint64_t device_full = 0;
  uint64_t own_part = 0;  // by what a program set for its own process
  uint64_t last_refused_bytes = 0;
};

// Its processes that give back memory which they only cache (reclaim.h).
struct Reclaims {
  unsigned listening = 0;
  uint64_t asked = 0;                                               // how often
  std::optional<std::chrono::system_clock::time_point> asked_wall;  // last
  uint64_t given_bytes = 0;                                         // in all
  uint64_t last_given_bytes = 0;
};

// Memory in use over time, from one look at it to the next. All of the tenant's GPUs together.
struct MemoryUse {
  double byte_seconds = 0, seconds = 0;
  uint64_t bytes = 0;  // at the last look
  std::optional<Time> at;

  void Note(Time now, uint64_t used) {
    if (at && now > *at) {
      const double passed = std::chrono::duration<double>(now - *at).count();
      byte_seconds += static_cast<double>(bytes) * passed;
      seconds += passed;
    }
    at = now;
    bytes = used;
  }
  // Nullopt: it was not looked at twice.
  std::optional<uint64_t> Mean() const {
    return seconds > 0 ? std::optional(static_cast<uint64_t>(byte_seconds / seconds)) : std::nullopt;
  }
};

// Reasons of stops that nobody asked for.
inline constexpr std::string_view kTimeWasOver = "its time was over";
inline constexpr std::string_view kStoppedByStrict = "stopped by --strict";

struct Ended {
  std::string why;
  std::optional<int> exit_code;
  std::optional<int> signal;
  Time at{};
  std::chrono::system_clock::time_point wall{};
};

// Under MPS: what ended the work of its processes on the GPU.
struct LostWork {
  enum class Cause { kNeighbour, kOwnFault, kUnknown, kServer };
  Cause cause = Cause::kUnknown;
  std::string why;  // for `ended.why`
};
// As in JSON: "neighbour-fault", "own-fault", "unknown-fault", "mps-server".
std::string_view Name(LostWork::Cause cause);

struct Tenant {
  // Whether its programs are clients of the MPS server of its GPUs.
  bool ViaMps() const { return mode == core::Mode::kMps && apart.empty(); }

  std::string id;
  uint64_t session = 0;  // of its `run`; 0 once that is gone
  RunRequest request;
  uid_t uid = 0;
  ProcessName run;
  core::Mode mode = core::Mode::kTimeslice;
  std::string mode_reason;
  std::string apart;                 // in mode mps: why it runs outside the server, alone; empty: it does not
  std::vector<core::Share> shares;   // by slot
  std::vector<size_t> gpus;          // by slot: index into Machine
  std::vector<uint64_t> peak_bytes;  // by slot
  MemoryUse use;
  std::vector<unsigned> readings_above;  // by slot: successive readings above the limit
  std::optional<TenantPages> pages;
  TenantState state = TenantState::kStarting;
  bool frozen = false;                       // above its limit: gets no more
  bool frees_as_it_goes = false;             // since its limit was lowered, and that was wanted
  std::vector<Risk> risks;                   // by slot, as far as its GPUs were read
  bool reservation = false;                  // for a program outside gpumux, which is `child`
  bool draining = false;                     // the grace time of a stop is over
  unsigned kills = 0;                        // times that SIGKILL was sent
  std::string not_enforced;                  // why the memory limit is not in force now; empty: nothing seen
  std::string was_not_enforced;              // the last such reason, for the record of its end
  std::map<size_t, std::string> unpromised;  // by Machine's index: who of it uses a GPU that is not its own
  Time admitted{};
  std::chrono::system_clock::time_point admitted_wall{};
  double waited_seconds = 0;
  std::optional<ProcessName> child;  // of RunStarted
  UniqueFd child_pidfd;
  EventLoop::Watch child_death;
  bool child_ended = false;  // or never to come
  std::map<ProcessName, LeftBehind> left_behind;
  // Its `run` lives and will come back: the tenant was taken over from a daemon that
  // is gone, or the session broke.
  bool run_expected = false;
  UniqueFd run_pidfd;
  EventLoop::Watch run_death, run_patience;
  bool guard_seen = false;   // at least one process of it had the guard in force
  bool summary_due = false;  // RunEnded was said; the answer waits for the tenant's end
  EventLoop::Watch summary_timer, time_limit;
  std::string stop_reason;
  int stop_signal = 0;
  std::optional<Time> killed_at;  // of a stop: SIGKILL then
  EventLoop::Watch stop_timer, stop_poll;
  std::vector<std::pair<ProcessName, UniqueFd>> stopped_processes;  // that got the stop's signal
  GatePage::Figures gates_of_dead;                                  // sums of what never shrinks
  Refusals refusals_of_dead;                                        // and of contexts, which no page counts
  Refusals refusals_before;                                         // at least so many: see carried.h
  std::optional<Refusal> last_refusal;
  bool refusal_stored = false;  // the row says that there was one
  Reclaims reclaims;
  uint64_t launches_of_dead = 0;
  core::IdleStretch idle;
  std::string idle_unknown = "not looked at yet";  // why there is no stretch
  std::map<core::ProcessKey, Member> members;
  std::optional<Ended> ended;
  std::optional<LostWork> lost_work;
  std::string events_before = "[]";    // of daemons before this one: JSON, see carried.h
  std::shared_ptr<TurnFigures> turns;  // null: it has not taken any
  uint64_t turns_serial = 0;
  bool turn_overran_told = false, turn_unused_told = false;  // as events
  // At its end: whether a fault of another was the reason, and that is not known yet.
  bool fault_asked = false, fault_asking = false;
};

}  // namespace gpumux::daemon
