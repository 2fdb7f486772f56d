// SPDX-License-Identifier: Apache-2.0
//
// The gate's word protocol (gpumux/abi/gate.h), every interleaving of it: two owners, the
// daemon's turn bit and the opener, each stopped before each of its atomic operations, and
// each owner and the daemon dead at any of them. What is explored is the header's own code:
// its atomic operations are replaced by ones that let another go on. An operation that has
// begun is repeated from its start, with what it read before, up to its next step.
//
// The opener's tick is a mirror of the guard's (guard/gate_threads.cc), which chooses by
// time what is chosen here in every way.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpumux::core {
namespace {

uint64_t OrFetch(uint64_t* word, uint64_t value);
void And(uint64_t* word, uint64_t value);
uint64_t Load(const uint64_t* word);
void Store(uint64_t* word, uint64_t value);

}  // namespace
}  // namespace gpumux::core

#define __atomic_or_fetch(word, value, order) gpumux::core::OrFetch(word, value)
#define __atomic_and_fetch(word, value, order) gpumux::core::And(word, value)
#define __atomic_load_n(word, order) gpumux::core::Load(word)
#define __atomic_store_n(word, value, order) gpumux::core::Store(word, value)
#include "gpumux/abi/gate.h"
#undef __atomic_or_fetch
#undef __atomic_and_fetch
#undef __atomic_load_n
#undef __atomic_store_n

namespace gpumux::core {
namespace {

constexpr int kActors = 3;  // two owners and the daemon
constexpr int kDaemon = 2;
constexpr std::array<uint64_t, kActors> kBits = {1, 2, GPUMUX_GATE_TURN};
constexpr std::array<const char*, kActors> kNames = {"A", "B", "daemon"};
constexpr size_t kMostSteps = 8;

// Three bits a value: all that the words ever hold here.
uint8_t Pack(uint64_t value) {
  return static_cast<uint8_t>((value & 3) | (value & GPUMUX_GATE_TURN ? 4 : 0));
}
uint64_t Unpack(uint8_t value) { return (value & 3u) | (value & 4u ? GPUMUX_GATE_TURN : 0); }

// An operation under way: what its atomic operations have returned so far.
struct Running {
  uint8_t steps = 0;
  std::array<uint8_t, kMostSteps> results{};
};

enum class Phase : uint8_t { kIdle, kCloses, kBusy, kOpens, kDead };
enum class Does : uint8_t { kNothing, kRepairs, kForces, kUnforces, kClearsDead };

struct Actor {
  Phase phase = Phase::kIdle;
  Running running;
  bool may_have_seen_unforced = false;  // since it began to close
  bool opened_in_tick = false;          // was opening while the opener's operation of now ran
  bool not_yet = false;       // busy, and a whole tick may have to pass before its closure is in force
  bool late = false;          // closed what was forced open since it had looked
  bool left_to_tick = false;  // idle, and the opener's operation of now may have set its bit
  bool cleared = false;       // dead, and seen to be
};

struct State {
  uint8_t want = 0, closed = 0, forced = 0;
  std::array<Actor, kActors> actors;
  Does does = Does::kNothing;
  Running running;
  bool keeps_forced = false;  // the opener's own state
  uint8_t dead = 0;           // as the opener's look found
  uint8_t busy_before = 0;    // at the start of its operation
};

struct Protocol {
  void (*close)(gpumux_gate_page*, uint64_t) = gpumux_gate_close;
  void (*open)(gpumux_gate_page*, uint64_t) = gpumux_gate_open;
  void (*repair)(gpumux_gate_page*) = gpumux_gate_repair;
  void (*force)(gpumux_gate_page*) = gpumux_gate_force;
  void (*unforce)(gpumux_gate_page*) = gpumux_gate_unforce;
  void (*clear_dead)(gpumux_gate_page*, uint64_t) = gpumux_gate_open;
};

// ---- the atomic operations ----

gpumux_gate_page g_page{};
Running* g_running = nullptr;
size_t g_at = 0;
bool g_may_step = false;
std::jmp_buf g_stop;

// What was done before is not done again.
template <typename Operation>
uint64_t Step(Operation operation) {
  if (g_at < g_running->steps) return Unpack(g_running->results[g_at++]);
  if (!g_may_step) std::longjmp(g_stop, 1);
  g_may_step = false;
  const uint64_t result = operation();
  g_running->results[g_running->steps++] = Pack(result);
  ++g_at;
  return result;
}

// What nobody looks at is not remembered, or there would be ten times the states: the
// header looks at no result of `and`, which would not compile, and an owner at none of `or`.
bool g_is_owner = false;

uint64_t OrFetch(uint64_t* word, uint64_t value) {
  return Step([&] { return (*word |= value) & (g_is_owner ? 0 : ~uint64_t{0}); });
}
void And(uint64_t* word, uint64_t value) {
  Step([&] { return (*word &= value) & 0; });
}
uint64_t Load(const uint64_t* word) {
  return Step([&] { return *word; });
}
void Store(uint64_t* word, uint64_t value) {
  Step([&] { return (*word = value) & 0; });
}

// One step of `operation`. True: it was the last.
// Not inlined: what setjmp is called beside may not live in registers.
[[gnu::noinline]] bool Advance(State& state, Running& running, const std::function<void()>& operation) {
  g_page.want = Unpack(state.want);
  g_page.closed = Unpack(state.closed);
  g_page.forced = state.forced;
  g_running = &running;
  g_at = 0;
  g_may_step = true;
  volatile bool ended = false;
  if (setjmp(g_stop) == 0) {
    operation();
    ended = true;
  }
  state.want = Pack(g_page.want);
  state.closed = Pack(g_page.closed);
  state.forced = static_cast<uint8_t>(g_page.forced);
  if (ended) running = {};
  return ended;
}

// ---- who does what ----

bool HasBit(uint8_t word, int actor) { return word & Pack(kBits[actor]); }
bool IsUnderWay(const Actor& actor) { return actor.phase == Phase::kCloses || actor.phase == Phase::kOpens; }
bool Repairs(const State& state) { return state.does == Does::kRepairs || state.does == Does::kUnforces; }

void StepActor(const Protocol& protocol, State& state, int i) {
  Actor& actor = state.actors[i];
  if (actor.phase == Phase::kIdle) {
    actor.phase = Phase::kCloses;
    actor.may_have_seen_unforced = !state.forced;
    actor.left_to_tick = false;
  } else if (actor.phase == Phase::kBusy) {
    actor.phase = Phase::kOpens;
    actor.not_yet = actor.late = false;
    state.busy_before &= static_cast<uint8_t>(~Pack(kBits[i]));
  }
  const bool closes = actor.phase == Phase::kCloses;
  if (!closes && Repairs(state)) actor.opened_in_tick = true;
  const uint8_t before = state.closed;
  g_is_owner = true;
  const bool ended =
      Advance(state, actor.running, [&] { (closes ? protocol.close : protocol.open)(&g_page, kBits[i]); });
  const bool set = !HasBit(before, i) && HasBit(state.closed, i);
  if (closes && set && state.forced && actor.may_have_seen_unforced) actor.late = true;
  if (!ended) return;
  if (closes) {
    actor.phase = Phase::kBusy;
    const bool forced = i != kDaemon && (state.forced || state.does == Does::kForces);
    // Its bit was to be cleared when it opened, and may still be.
    actor.not_yet = forced || (Repairs(state) && actor.opened_in_tick);
  } else {
    actor.phase = Phase::kIdle;
    actor.left_to_tick = Repairs(state);
  }
}

void Die(State& state, int i) {
  Actor& actor = state.actors[i];
  actor = {};
  actor.phase = Phase::kDead;
}

uint8_t DeadNow(const State& state) {
  uint8_t dead = 0;
  for (int i = 0; i < kActors; ++i) {
    if (state.actors[i].phase == Phase::kDead) dead |= Pack(kBits[i]);
  }
  return dead;
}

void Begin(State& state, Does does) {
  state.does = does;
  state.busy_before = 0;
  for (int i = 0; i < kActors; ++i) {
    Actor& actor = state.actors[i];
    actor.opened_in_tick = actor.phase == Phase::kOpens;
    if (actor.phase == Phase::kBusy) state.busy_before |= Pack(kBits[i]);
    // From its first step on.
    if (does == Does::kForces && i != kDaemon && (actor.phase == Phase::kBusy)) actor.not_yet = true;
  }
  if (does == Does::kClearsDead) state.dead = DeadNow(state);
}

void End(State& state) {
  for (int i = 0; i < kActors; ++i) {
    Actor& actor = state.actors[i];
    const bool busy_throughout = actor.phase == Phase::kBusy && HasBit(state.busy_before, i);
    if (Repairs(state) && busy_throughout && (i == kDaemon || !state.forced)) actor.not_yet = false;
    if (state.does == Does::kForces) actor.late = false;
    if (Repairs(state)) actor.left_to_tick = false;
    if (state.does == Does::kClearsDead && HasBit(state.dead, i)) actor.cleared = true;
    actor.opened_in_tick = false;
  }
  if (state.does == Does::kForces) state.keeps_forced = true;
  if (state.does == Does::kUnforces) state.keeps_forced = false;
  state.does = Does::kNothing;
  state.dead = state.busy_before = 0;
}

void StepOpener(const Protocol& protocol, State& state) {
  const uint64_t dead = Unpack(state.dead);
  const Does does = state.does;
  g_is_owner = false;
  const bool ended = Advance(state, state.running, [&] {
    if (does == Does::kRepairs) protocol.repair(&g_page);
    if (does == Does::kForces) protocol.force(&g_page);
    if (does == Does::kUnforces) protocol.unforce(&g_page);
    if (does == Does::kClearsDead) protocol.clear_dead(&g_page, dead);
  });
  if (ended) End(state);
  for (Actor& actor : state.actors)
    actor.may_have_seen_unforced |= actor.phase == Phase::kCloses && !state.forced;
}

// What the opener may begin with now. A repair while it is forced is none of the guard's,
// and allowed by the protocol.
std::vector<Does> Choices(const State& state) {
  std::vector<Does> choices = {Does::kRepairs, Does::kForces};
  if (state.keeps_forced) choices.push_back(Does::kUnforces);
  if (DeadNow(state) != 0) choices.push_back(Does::kClearsDead);
  return choices;
}

// ---- what has to hold ----

std::string Broken(const State& state) {
  for (int i = 0; i < kActors; ++i) {
    const Actor& actor = state.actors[i];
    const std::string name = kNames[i];
    const bool closed = HasBit(state.closed, i);
    if (actor.phase == Phase::kBusy && !actor.not_yet && !closed)
      return name + " is busy and its closure is not in force";
    if (actor.phase == Phase::kIdle && !actor.left_to_tick && closed)
      return name + " is idle and keeps the gate closed";
    if (actor.cleared && (closed || HasBit(state.want, i)))
      return name + " is dead and keeps the gate closed";
    const bool settled = state.does != Does::kForces && state.does != Does::kUnforces;
    if (state.keeps_forced && settled && i != kDaemon && closed && !actor.late &&
        actor.phase != Phase::kDead && !(IsUnderWay(actor) && actor.may_have_seen_unforced))
      return name + " keeps a gate closed that is forced open";
  }
  return "";
}

// Everybody else stands still for good, where he is: what does the opener make of it?
std::string BrokenByStandstill(const Protocol& protocol, State state) {
  const auto run = [&](Does does) {
    Begin(state, does);
    while (state.does != Does::kNothing) StepOpener(protocol, state);
  };
  while (state.does != Does::kNothing) StepOpener(protocol, state);
  State forced = state;
  if (DeadNow(state) != 0) run(Does::kClearsDead);
  run(state.keeps_forced ? Does::kUnforces : Does::kRepairs);
  uint8_t wanted = 0;
  for (int i = 0; i < kActors; ++i) {
    const Actor& actor = state.actors[i];
    if (actor.phase == Phase::kBusy) wanted |= Pack(kBits[i]);
    if (IsUnderWay(actor)) wanted |= state.want & Pack(kBits[i]);
  }
  if (state.closed != wanted) return "a tick leaves the gate other than who is busy wants it";
  state = forced;
  run(Does::kForces);
  if ((state.closed & 3) != 0) return "a forced opening leaves it closed";
  return "";
}

// ---- all of it ----

struct Key {
  uint64_t actors, opener;
  bool operator==(const Key&) const = default;
};
struct HashOfKey {
  size_t operator()(const Key& key) const {
    return (key.actors * 0x9e3779b97f4a7c15u) ^ (key.opener * 0xff51afd7ed558ccdu) ^ (key.actors >> 31);
  }
};

void Append(uint64_t& word, unsigned bits, uint64_t value) { word = word << bits | value; }

Key KeyOf(const State& state) {
  Key key{};
  for (const Actor& actor : state.actors) {
    Append(key.actors, 3, static_cast<uint64_t>(actor.phase));
    Append(key.actors, 2, actor.running.steps);
    for (int i = 0; i < 3; ++i) Append(key.actors, 3, actor.running.results[i]);
    for (const bool flag : {actor.may_have_seen_unforced, actor.opened_in_tick, actor.not_yet, actor.late,
                            actor.left_to_tick, actor.cleared})
      Append(key.actors, 1, flag);
  }
  Append(key.opener, 3, state.want);
  Append(key.opener, 3, state.closed);
  Append(key.opener, 1, state.forced);
  Append(key.opener, 3, static_cast<uint64_t>(state.does));
  Append(key.opener, 4, state.running.steps);
  for (const uint8_t result : state.running.results) Append(key.opener, 3, result);
  Append(key.opener, 1, state.keeps_forced);
  Append(key.opener, 3, state.dead);
  Append(key.opener, 3, state.busy_before);
  return key;
}

struct Move {
  enum What : uint8_t { kStep, kDies, kBegins, kOpenerStep } what;
  uint8_t which;
};

std::string Text(const Move& move) {
  static constexpr std::array<const char*, 5> kDoes = {"", "repair", "force", "unforce", "clear the dead"};
  if (move.what == Move::kBegins) return std::string("opener begins to ") + kDoes[move.which];
  if (move.what == Move::kOpenerStep) return "opener";
  return std::string(kNames[move.which]) + (move.what == Move::kDies ? " dies" : "");
}

class Explorer {
 public:
  // `without`: one who does nothing.
  Explorer(const Protocol& protocol, int without) : protocol_(protocol), without_(without) {}

  // Empty: all holds. Else what does not, and how it came to that.
  std::string Run() {
    Reach(State{}, KeyOf(State{}), {});
    for (size_t at = 0; at < queue_.size() && broken_.empty(); ++at) Expand(State(queue_[at]));
    return broken_;
  }
  size_t states() const { return seen_.size(); }

 private:
  struct From {
    Key key;
    Move move;
  };

  void Expand(const State& from) {
    const Key key = KeyOf(from);
    for (uint8_t i = 0; i < kActors; ++i) {
      if (i == without_ || from.actors[i].phase == Phase::kDead) continue;
      State next = from;
      StepActor(protocol_, next, i);
      Reach(next, key, {Move::kStep, i});
      next = from;
      Die(next, i);
      Reach(next, key, {Move::kDies, i});
    }
    if (from.does != Does::kNothing) {
      State next = from;
      StepOpener(protocol_, next);
      Reach(next, key, {Move::kOpenerStep, 0});
      return;
    }
    for (const Does does : Choices(from)) {
      State next = from;
      Begin(next, does);
      Reach(next, key, {Move::kBegins, static_cast<uint8_t>(does)});
    }
  }

  void Reach(const State& state, const Key& from, Move move) {
    const Key key = KeyOf(state);
    if (!broken_.empty() || !seen_.try_emplace(key, From{from, move}).second) return;
    queue_.push_back(state);
    std::string broken = Broken(state);
    if (broken.empty()) broken = BrokenByStandstill(protocol_, state);
    if (!broken.empty()) broken_ = broken + "\n" + Trace(key);
  }

  std::string Trace(Key key) const {
    std::string text;
    while (key != KeyOf(State{})) {
      const From& from = seen_.at(key);
      text = "  " + Text(from.move) + "\n" + text;
      key = from.key;
    }
    return text;
  }

  const Protocol protocol_;
  const int without_;
  std::vector<State> queue_;
  std::unordered_map<Key, From, HashOfKey> seen_;
  std::string broken_;
};

std::string Explore(const Protocol& protocol, int without = -1) {
  Explorer explorer(protocol, without);
  const std::string broken = explorer.Run();
  printf("%zu states\n", explorer.states());
  return broken;
}

#ifdef GATE_MODEL_LONG

TEST(GateModel, HoldsForTwoOwnersAndTheDaemon) { EXPECT_EQ(Explore({}), ""); }

#else

TEST(GateModel, HoldsForTwoOwners) { EXPECT_EQ(Explore({}, kDaemon), ""); }
TEST(GateModel, HoldsForAnOwnerAndTheDaemon) { EXPECT_EQ(Explore({}, 1), ""); }

// ---- what would be wrong, and is found ----

struct Fault {
  const char* name;
  Protocol protocol;
  const char* found;
};

const Fault kFaults[] = {
    {"the gate is closed before that is wanted",
     {.close =
          [](gpumux_gate_page* page, uint64_t bit) {
            if (!Load(&page->forced)) OrFetch(&page->closed, bit);
            OrFetch(&page->want, bit);
          }},
     "is busy and its closure is not in force"},
    {"closing does not look whether it is forced open",
     {.close =
          [](gpumux_gate_page* page, uint64_t bit) {
            OrFetch(&page->want, bit);
            OrFetch(&page->closed, bit);
          }},
     "keeps a gate closed that is forced open"},
    {"two owners' bits are written as one word",
     {.close =
          [](gpumux_gate_page* page, uint64_t bit) {
            OrFetch(&page->want, bit);
            if (!Load(&page->forced)) Store(&page->closed, Load(&page->closed) | bit);
          }},
     "is busy and its closure is not in force"},
    {"closed is not said to be wanted",
     {.close = [](gpumux_gate_page* page, uint64_t bit) { OrFetch(&page->closed, bit); }},
     "a tick leaves the gate other than"},
    {"the gate is opened before that is wanted",
     {.open =
          [](gpumux_gate_page* page, uint64_t bit) {
            And(&page->closed, ~bit);
            And(&page->want, ~bit);
          }},
     "is idle and keeps the gate closed"},
    {"opening opens for the other one too",
     {.open =
          [](gpumux_gate_page* page, uint64_t bit) {
            And(&page->want, ~bit);
            Store(&page->closed, 0);
          }},
     "is busy and its closure is not in force"},
    {"a repair closes and does not open",
     {.repair =
          [](gpumux_gate_page* page) {
            const uint64_t wanted = Load(&page->want);
            if (!Load(&page->forced)) OrFetch(&page->closed, wanted);
          }},
     "a tick leaves the gate other than"},
    {"a repair does not look again at what is wanted",
     {.repair =
          [](gpumux_gate_page* page) {
            const uint64_t wanted = Load(&page->want);
            const uint64_t may = Load(&page->forced) ? GPUMUX_GATE_TURN : ~uint64_t{0};
            const uint64_t stale = OrFetch(&page->closed, wanted & may) & ~(wanted & may);
            if (stale) And(&page->closed, ~stale);
          }},
     "is busy and its closure is not in force"},
    {"a repair does not close",
     {.repair =
          [](gpumux_gate_page* page) {
            const uint64_t closed = OrFetch(&page->closed, 0);
            const uint64_t stale = closed & ~Load(&page->want);
            if (stale) And(&page->closed, ~stale);
          }},
     "a tick leaves the gate other than"},
    {"a repair writes the word as a whole",
     {.repair = [](gpumux_gate_page* page) { Store(&page->closed, Load(&page->want)); }},
     "is busy and its closure is not in force"},
    {"a repair closes what is forced open",
     {.repair =
          [](gpumux_gate_page* page) {
            const uint64_t closed = OrFetch(&page->closed, Load(&page->want));
            const uint64_t stale = closed & ~Load(&page->want);
            if (stale) And(&page->closed, ~stale);
          }},
     "keeps a gate closed that is forced open"},
    {"it is opened by force before that is said",
     {.force =
          [](gpumux_gate_page* page) {
            And(&page->closed, GPUMUX_GATE_TURN);
            Store(&page->forced, 1);
          }},
     "keeps a gate closed that is forced open"},
    {"after a forced opening nothing is closed again",
     {.unforce = [](gpumux_gate_page* page) { Store(&page->forced, 0); }},
     "a tick leaves the gate other than"},
    {"a forced opening is for good",
     {.unforce = [](gpumux_gate_page* page) { gpumux_gate_repair(page); }},
     "a tick leaves the gate other than"},
    {"nobody looks for the dead",
     {.clear_dead = [](gpumux_gate_page*, uint64_t) {}},
     "a tick leaves the gate other than"},
    {"of the dead the gate is opened, and the wish left",
     {.clear_dead = [](gpumux_gate_page* page, uint64_t dead) { And(&page->closed, ~dead); }},
     "a tick leaves the gate other than"},
};

class GateModelFault : public ::testing::TestWithParam<Fault> {};

TEST_P(GateModelFault, IsFound) {
  const std::string broken = Explore(GetParam().protocol, kDaemon);
  EXPECT_NE(broken, "") << GetParam().name;
  EXPECT_NE(broken.find(GetParam().found), std::string::npos) << GetParam().name << ": " << broken;
}

INSTANTIATE_TEST_SUITE_P(All, GateModelFault, ::testing::ValuesIn(kFaults), [](const auto& fault) {
  std::string name = fault.param.name;
  std::replace_if(name.begin(), name.end(), [](char c) { return !isalnum(c); }, '_');
  return name;
});

#endif

}  // namespace
}  // namespace gpumux::core
