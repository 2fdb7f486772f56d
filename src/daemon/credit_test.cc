// SPDX-License-Identifier: Apache-2.0
//
// Asks for bytes within one tenant: granted, recalled from siblings, parked, refused.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

bool AnsweredWithin(const GuardPeer& guard, int milliseconds) {
  pollfd poll{guard.socket.fd(), POLLIN, 0};
  return ::poll(&poll, 1, milliseconds) == 1;
}

gpumux_credit_reply CreditAnswer(GuardPeer& guard) {
  const auto packet = guard.Receive();
  if (!packet) return {};
  return ipc::PayloadAs<gpumux_credit_reply>(*ipc::DecodeFrame(*packet));
}

void SendCredit(GuardPeer& guard, uint64_t bytes) {
  const gpumux_credit_request request{0, 0, bytes};
  guard.Send(GPUMUX_CREDIT_REQUEST, std::as_bytes(std::span(&request, 1)));
}

TEST_F(DaemonTest, RacersAtTheCapGetExactlyTheCap) {
  constexpr int kRacers = 16;
  constexpr uint64_t kPiece = 2 * kMiB;
  constexpr uint64_t kCap = 2 * kGiB;
  RunPeer run(daemon.session, Ask(kCap));
  const std::string id = run.Granted()["tenant_id"];
  struct Shared {
    std::atomic<uint64_t> held{0};
    std::atomic<uint64_t> most{0};
    std::atomic<int> full{0};
    std::atomic<int> round{0};
    std::atomic<int> looked{0};
    std::atomic<int> ready{0};
  };
  auto* shared =
      new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Shared;
  std::vector<Child> racers;
  for (int r = 0; r < kRacers; ++r) {
    racers.emplace_back([&] {
      GuardPeer guard = GuardPeer::Hello(daemon.session, id);
      if (!guard.welcome) return 1;
      ++shared->ready;
      for (int round = 1; round <= 5; ++round) {
        if (!WaitUntil([&] { return shared->round >= round; })) return 2;
        uint64_t mine = 0, taken = 0;
        while (guard.TakeFree(kPiece) || guard.Credit(kPiece).granted) {
          const uint64_t held = shared->held.fetch_add(kPiece) + kPiece;
          for (uint64_t most = shared->most;
               held > most && !shared->most.compare_exchange_weak(most, held);) {
          }
          guard.Commit(kPiece);
          mine += kPiece;
          // Some of it comes and goes.
          if (++taken % 16 == 0) {
            guard.Commit(-kPiece);
            shared->held -= kPiece;
            mine -= kPiece;
            guard.Return(kPiece);
          }
        }
        ++shared->full;
        if (!WaitUntil([&] { return shared->full == kRacers * round; })) return 3;
        // Nobody frees before the test has looked.
        if (!WaitUntil([&] { return shared->looked >= round; })) return 4;
        guard.Commit(-mine);
        shared->held -= mine;
        guard.Return(static_cast<int64_t>(mine));
        ++shared->ready;
      }
      pause();
      return 0;
    });
  }
  for (int round = 1; round <= 5; ++round) {
    ASSERT_TRUE(WaitUntil([&] { return shared->ready == kRacers * round; }));
    shared->round = round;
    ASSERT_TRUE(WaitUntil([&] { return shared->full == kRacers * round; }, std::chrono::seconds(40)));
    EXPECT_EQ(shared->held, kCap) << "refused while bytes were left, round " << round;
    EXPECT_EQ(shared->most, kCap);
    EXPECT_EQ(TenantOf(id)["mem_used_bytes"], kCap);
    shared->looked = round;
  }
  racers.clear();
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["members"].empty(); }));
  EXPECT_EQ(TenantOf(id)["mem_used_bytes"], 0);
}

TEST_F(DaemonTest, RecallsCreditOfSiblingsBeforeItRefuses) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Baton ready;
  Child sibling([&] {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    if (!guard.Credit(600 * kMiB).granted) return 1;
    guard.Return(600 * kMiB);  // used and freed
    ready.Pass();
    pause();
    return 0;
  });
  ready.Take();
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  EXPECT_TRUE(guard.Credit(kGiB).granted);
  guard.Commit(kGiB);
  EXPECT_EQ(guard.Credit(1).reason, GPUMUX_REASON_LIMIT);
}

TEST_F(DaemonTest, WaitsForCallsUnderWayBeforeItRefuses) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Baton granted, finish, again, commit;
  Child sibling([&] {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    if (!guard.Credit(600 * kMiB).granted) return 1;
    granted.Pass();
    finish.Take();
    guard.Return(600 * kMiB);  // the driver said no: cancelled
    again.Take();
    if (!guard.Credit(600 * kMiB).granted) return 2;
    granted.Pass();
    commit.Take();
    guard.Commit(600 * kMiB);
    pause();
    return 0;
  });
  granted.Take();
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  // What could not fit even if all were cancelled is refused at once.
  EXPECT_EQ(guard.Credit(kGiB + 1).reason, GPUMUX_REASON_LIMIT);
  SendCredit(guard, 700 * kMiB);
  EXPECT_FALSE(AnsweredWithin(guard, 100));
  finish.Pass();
  EXPECT_TRUE(CreditAnswer(guard).granted);
  guard.Return(700 * kMiB);

  again.Pass();
  granted.Take();
  SendCredit(guard, 700 * kMiB);
  EXPECT_FALSE(AnsweredWithin(guard, 100));
  commit.Pass();
  EXPECT_TRUE(AnsweredWithin(guard, 1500));  // known now: long before the limit of waiting
  EXPECT_EQ(CreditAnswer(guard).reason, GPUMUX_REASON_LIMIT);
}

TEST_F(DaemonTest, AnswersWithinBoundsThoughACallNeverEnds) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Baton granted;
  Child sibling([&] {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    if (!guard.Credit(600 * kMiB).granted) return 1;
    granted.Pass();
    pause();
    return 0;
  });
  granted.Take();
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  EXPECT_EQ(guard.Credit(700 * kMiB).reason, GPUMUX_REASON_LIMIT);
}

TEST_F(DaemonTest, GivesTheBytesOfTheDeadToWhoIsParked) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Baton granted;
  Child sibling([&] {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    if (!guard.Credit(600 * kMiB).granted) return 1;
    granted.Pass();
    pause();
    return 0;
  });
  granted.Take();
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  SendCredit(guard, 700 * kMiB);
  EXPECT_FALSE(AnsweredWithin(guard, 50));
  sibling.Kill();
  EXPECT_TRUE(CreditAnswer(guard).granted);
}

TEST_F(DaemonTest, AGrantIsInThePageBeforeItsAnswerAndGoesWithIt) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  auto& granted = guard.process.as<gpumux_process_page>()->granted_request;
  ASSERT_TRUE(guard.Credit(kMiB).granted);
  EXPECT_EQ(granted, guard.request_id);
  // Refused: nothing to take from the page.
  const uint32_t before = guard.request_id;
  EXPECT_FALSE(guard.Credit(2 * kGiB).granted);
  EXPECT_EQ(granted, before);
  // An answer that cannot be sent: the daemon has the bytes again.
  const auto used = TenantOf(id)["mem_used_bytes"].get<uint64_t>();
  daemon.process->Kill(SIGSTOP);
  SendCredit(guard, 512 * kMiB);
  guard.socket = {};
  daemon.process->Kill(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] { return std::atomic_ref<uint64_t>(granted).load() == 0; }));
  EXPECT_LE(TenantOf(id)["mem_used_bytes"].get<uint64_t>(), used + 64 * kMiB);
}

TEST_F(DaemonTest, SurvivesTheDeathOfWhoIsParked) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  ASSERT_TRUE(guard.Credit(600 * kMiB).granted);
  Baton asked;
  Child sibling([&] {
    GuardPeer other = GuardPeer::Hello(daemon.session, id);
    SendCredit(other, 700 * kMiB);
    asked.Pass();
    pause();
    return 0;
  });
  asked.Take();
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["members"].size() == 2; }));
  sibling.Kill();
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["members"].size() == 1; }));
  guard.Return(600 * kMiB);
  EXPECT_TRUE(guard.Credit(kGiB).granted);
}

}  // namespace
}  // namespace gpumux::daemon
