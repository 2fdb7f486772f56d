// SPDX-License-Identifier: Apache-2.0
//
// The turn thread with gate pages of programs that only say what a guard says.
#include "daemon/turn_thread.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>

#include "base/clock.h"
#include "daemon/testing/peers.h"
#include "gpumux/abi/gate.h"
#include "gpumux/abi/pages.h"

namespace gpumux::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A process: its gate page as the daemon has it, and as its guard and GPU write it.
class Program {
 public:
  Program() : page_(std::make_shared<GatePage>(*GatePage::Create())) {
    void* at = ::mmap(nullptr, GPUMUX_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, page_->fd(), 0);
    own_ = static_cast<gpumux_gate_page*>(at == MAP_FAILED ? nullptr : at);
    own_->streams = 1;
  }
  ~Program() { ::munmap(own_, GPUMUX_PAGE_BYTES); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void Wants(bool wants) { std::atomic_ref<uint32_t>(own_->wants).store(wants); }
  void Begin() { std::atomic_ref<uint64_t>(own_->segments[0].entered).fetch_add(1); }
  void End() { std::atomic_ref<uint64_t>(own_->segments[0].passed).fetch_add(1); }
  bool Open() const { return std::atomic_ref<uint64_t>(own_->closed).load() == 0; }
  uint64_t Beat() const { return std::atomic_ref<uint64_t>(own_->turn_beat_ns).load(); }
  void CloseAsOwner(bool closed) { closed ? gpumux_gate_close(own_, 1) : gpumux_gate_open(own_, 1); }
  std::shared_ptr<GatePage> page() const { return page_; }

 private:
  std::shared_ptr<GatePage> page_;
  gpumux_gate_page* own_ = nullptr;
};

TurnTenant Tenant(uint64_t serial, std::vector<Program*> programs, unsigned gpus = 1) {
  TurnTenant tenant{.serial = serial, .share = {}, .gpus = gpus, .pages = {}, .figures = {}};
  for (const Program* program : programs) tenant.pages.push_back(program->page());
  tenant.figures = std::make_shared<TurnFigures>();
  return tenant;
}

std::unique_ptr<TurnRoster> Roster(std::vector<TurnTenant> tenants) {
  auto roster = std::make_unique<TurnRoster>();
  roster->tenants = std::move(tenants);
  return roster;
}

// The test's thread may be away for long.
const core::Turns::Times kPatient{.grace = seconds(60), .unused_after = seconds(60)};

TEST(TurnThread, LetsOneWorkAtATime) {
  Program a, b;
  const auto ta = Tenant(1, {&a}), tb = Tenant(2, {&b});
  TurnWaits waits;
  TurnThread thread(kPatient, waits);
  a.Wants(true), b.Wants(true);
  thread.Take(Roster({ta, tb}));
  ASSERT_TRUE(WaitUntil([&] { return a.Open() != b.Open(); }));
  for (int turns = 0; turns < 6; ++turns) {
    Program& holder = a.Open() ? a : b;
    Program& other = a.Open() ? b : a;
    holder.Begin();
    // Its time is over: closed, and nobody has it until what is in flight has ended.
    ASSERT_TRUE(WaitUntil([&] { return !holder.Open(); }));
    EXPECT_FALSE(other.Open());
    holder.End();
    ASSERT_TRUE(WaitUntil([&] { return other.Open(); }));
  }
  EXPECT_GE(ta.figures->turns + tb.figures->turns, 5u);
  EXPECT_GT(ta.figures->billed_ns, 0);
  EXPECT_GT(tb.figures->billed_ns, 0);
  // Each turn was waited for while the other had its own.
  uint64_t begun = 0;
  for (const auto& count : waits.counts) begun += count;
  EXPECT_GE(begun, 7u);
  EXPECT_EQ(waits.sum_ns, ta.figures->waited_ns + tb.figures->waited_ns);
  EXPECT_GE(waits.sum_ns, std::chrono::nanoseconds(6 * core::Turns::kShortest).count());
  EXPECT_LE(waits.counts[0], 2u) << "the first alone did not wait";
  a.Wants(false), b.Wants(false);
  EXPECT_TRUE(WaitUntil([&] { return a.Open() && b.Open(); }));
}

TEST(TurnThread, HoldsNobodyBackWhoIsAlone) {
  Program a, b;
  TurnWaits waits;
  TurnThread thread(kPatient, waits);
  a.Wants(true);
  const auto ta = Tenant(1, {&a});
  thread.Take(Roster({ta, Tenant(2, {&b})}));
  ASSERT_TRUE(WaitUntil([&] { return ta.figures->state == core::TurnState::kHolding; }));
  EXPECT_TRUE(a.Open());
  EXPECT_TRUE(b.Open());
}

TEST(TurnThread, ClosesAndOpensAllProcessesOfATenantTogether) {
  Program a, a2, b;
  TurnWaits waits;
  TurnThread thread(kPatient, waits);
  for (Program* program : {&a, &a2, &b}) program->Wants(true);
  thread.Take(Roster({Tenant(1, {&a, &a2}, 3), Tenant(2, {&b}, 2)}));
  for (int turns = 0; turns < 4; ++turns) {
    ASSERT_TRUE(WaitUntil([&] { return a.Open() && a2.Open() && !b.Open(); }));
    a.Begin();
    ASSERT_TRUE(WaitUntil([&] { return !a.Open() && !a2.Open(); }));
    EXPECT_FALSE(b.Open());
    a.End();
    ASSERT_TRUE(WaitUntil([&] { return b.Open() && !a2.Open(); }));
    b.Begin(), b.End();
  }
}

TEST(TurnThread, BeatsAsLongAsItLives) {
  Program a, b;
  TurnWaits waits;
  TurnThread thread(kPatient, waits);
  thread.Take(Roster({Tenant(1, {&a}), Tenant(2, {&b})}));
  ASSERT_TRUE(WaitUntil([&] { return a.Beat() != 0; }));
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = a.Beat();
    ASSERT_TRUE(
        WaitUntil([&] { return a.Beat() != before; }, milliseconds(GPUMUX_TURN_STALE_NS / 1'000'000)));
  }
}

TEST(TurnThread, OpensGatesOfThoseThatTakeNoMoreTurnsAndAtItsEnd) {
  Program a, b, c;
  TurnWaits waits;
  auto thread = std::make_unique<TurnThread>(kPatient, waits);
  for (Program* program : {&a, &b, &c}) program->Wants(true);
  const auto ta = Tenant(1, {&a}), tb = Tenant(2, {&b}), tc = Tenant(3, {&c});
  const auto open = [&] { return a.Open() + b.Open() + c.Open(); };
  thread->Take(Roster({ta, tb, tc}));
  ASSERT_TRUE(WaitUntil([&] { return open() == 1; }));
  // One that is closed leaves.
  const bool a_goes = !a.Open();
  thread->Take(Roster(a_goes ? std::vector{tb, tc} : std::vector{ta, tc}));
  Program& gone = a_goes ? a : b;
  ASSERT_TRUE(WaitUntil([&] { return gone.Open(); }));
  ASSERT_TRUE(WaitUntil([&] { return open() == 2; }));
  thread.reset();
  EXPECT_EQ(open(), 3);
}

TEST(TurnThread, HoldsANewProcessOfAWaitingTenantBack) {
  Program a, b, b2;
  TurnWaits waits;
  TurnThread thread(kPatient, waits);
  a.Wants(true), b.Wants(true), b2.Wants(true);
  const auto ta = Tenant(1, {&a});
  auto tb = Tenant(2, {&b});
  thread.Take(Roster({ta, tb}));
  ASSERT_TRUE(WaitUntil([&] { return a.Open() && !b.Open(); }));
  a.Begin();  // and never ends it: the others wait
  ASSERT_TRUE(WaitUntil([&] { return !a.Open() && !b.Open(); }));
  ASSERT_TRUE(b2.Open());
  tb.pages.push_back(b2.page());
  thread.Take(Roster({ta, tb}));
  EXPECT_TRUE(WaitUntil([&] { return !b2.Open(); }));
  a.End();
  EXPECT_TRUE(WaitUntil([&] { return b.Open() && b2.Open(); }));
}

TEST(TurnThread, TakesTheTurnOfWhoHangsAndSaysSo) {
  Program a, b;
  TurnWaits waits;
  TurnThread thread({.grace = milliseconds(50), .unused_after = seconds(60)}, waits);
  a.Wants(true), b.Wants(true);
  const auto ta = Tenant(1, {&a}), tb = Tenant(2, {&b});
  thread.Take(Roster({ta, tb}));
  ASSERT_TRUE(WaitUntil([&] { return a.Open() != b.Open(); }));
  const bool a_first = a.Open();
  Program& hung = a_first ? a : b;
  Program& other = a_first ? b : a;
  hung.Begin();
  ASSERT_TRUE(WaitUntil([&] { return other.Open(); }));
  EXPECT_FALSE(hung.Open());
  EXPECT_EQ((a_first ? ta : tb).figures->overran, 1u);
}

TEST(TurnThread, BelievesNoPageOfAStoppedProgramOnceItsWorkMustHaveEnded) {
  Program a, b;
  TurnWaits waits;
  TurnThread thread({.grace = milliseconds(50), .unused_after = seconds(60)}, waits);
  a.Wants(true), b.Wants(true);
  const auto ta = Tenant(1, {&a}), tb = Tenant(2, {&b});
  thread.Take(Roster({ta, tb}));
  ASSERT_TRUE(WaitUntil([&] { return a.Open() && !b.Open(); }));
  a.Begin();
  ta.figures->stopped = true;
  ASSERT_TRUE(WaitUntil([&] { return ta.figures->state == core::TurnState::kIdle; }));
  const int64_t billed = ta.figures->billed_ns, of_b = tb.figures->billed_ns;
  ASSERT_TRUE(WaitUntil([&] { return tb.figures->billed_ns > of_b + 30'000'000; }));
  EXPECT_EQ(ta.figures->billed_ns, billed);
  // It goes on: what it says counts at once.
  a.End(), a.Begin();
  EXPECT_TRUE(WaitUntil([&] { return ta.figures->state != core::TurnState::kIdle; }));
}

TEST(TurnThread, GivesNoTurnsToWhoALatencyCriticalNeighbourHoldsBack) {
  Program a, b;
  TurnWaits waits;
  TurnThread thread(kPatient, waits);
  a.Wants(true), b.Wants(true);
  a.CloseAsOwner(true);
  const auto tb = Tenant(2, {&b});
  thread.Take(Roster({Tenant(1, {&a}), tb}));
  ASSERT_TRUE(WaitUntil([&] { return tb.figures->state == core::TurnState::kHolding; }));
  b.Begin();
  // Nobody else wants it: its turn is not ended.
  const int64_t before = tb.figures->billed_ns;
  ASSERT_TRUE(WaitUntil([&] { return tb.figures->billed_ns > before + 60'000'000; }));
  EXPECT_TRUE(b.Open());
  a.CloseAsOwner(false);
  ASSERT_TRUE(WaitUntil([&] { return !b.Open(); }));
  b.End();
  ASSERT_TRUE(WaitUntil([&] { return a.Open(); }));
}

}  // namespace
}  // namespace gpumux::daemon
