// SPDX-License-Identifier: Apache-2.0
//
// Guards' sessions: who may have one, one that comes back, a program executed by another.
#include <gtest/gtest.h>
#include <unistd.h>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

TEST_F(DaemonTest, GivesAGuardThatComesBackTheSamePages) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    EXPECT_EQ(guard.welcome->resumed, 0u);
    figures.Set(getpid(), kContext);
    guard.Commit(5);
  }
  GuardPeer again = GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES);
  EXPECT_EQ(again.welcome->resumed, 1u);
  EXPECT_EQ(again.gpu().committed_bytes, 5u);
  EXPECT_EQ(TenantOf(id)["members"].size(), 1u);
}

TEST_F(DaemonTest, AGuardThatComesBackIsChargedWhatItHas) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  const auto granted = [&] { return TenantOf(id)["members"][0]["gpus"][0]["mem_granted_bytes"]; };
  {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    ASSERT_TRUE(guard.Credit(kGiB).granted);
    guard.gpu().in_use_bytes -= kGiB;  // the answer never came
    guard.gpu().credit_free_bytes = 0;
  }
  GuardPeer again = GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES);
  EXPECT_EQ(granted(), 0);
  ASSERT_TRUE(again.Credit(2 * kGiB).granted);
  // Bytes that another thread moves meanwhile count once, and so does a debt.
  again.gpu().credit_free_bytes = kGiB;
  again.gpu().in_use_bytes -= kGiB;
  GuardPeer third = GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES);
  EXPECT_EQ(granted(), 2 * kGiB);
  // A context that may be made already is not its credit's.
  third.gpu().in_use_bytes = third.gpu().credit_free_bytes = 0;
  third.gpu().contexts_under_way = 1;
  GuardPeer fourth = GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES);
  EXPECT_EQ(granted(), 0);
  EXPECT_EQ(fourth.Credit(2 * kGiB - kContext).granted, 0u);
  EXPECT_EQ(fourth.Credit(kGiB).granted, 1u);
}

TEST_F(DaemonTest, AGuardThatComesBackCannotClaimMoreThanItsTenantMayHave) {
  RunPeer run(daemon.session, Ask(kGiB)), neighbour(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  neighbour.Granted();
  const auto promisable = Gpu()["mem_promisable_bytes"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  for (const uint64_t claim : {500 * kGiB, ~uint64_t{0}, uint64_t{1} << 63}) {
    guard.gpu().in_use_bytes = claim;
    guard.gpu().contexts = 1000;
    guard = GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES);
    EXPECT_LE(TenantOf(id)["mem_used_bytes"], kGiB);
    EXPECT_EQ(Gpu()["mem_promisable_bytes"], promisable);
  }
}

TEST_F(DaemonTest, AGuardInTheMiddleOfAChangeIsAskedToComeAgain) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  guard.gpu().transfers_begun = 1;
  GuardPeer again = GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES);
  EXPECT_FALSE(again.welcome);
  EXPECT_EQ(again.refused.reason, GPUMUX_REASON_INTERNAL);
  guard.gpu().transfers_ended = 1;
  EXPECT_TRUE(GuardPeer::Hello(daemon.session, id, GPUMUX_HELLO_HAS_PAGES).welcome);
}

TEST_F(DaemonTest, AProgramExecutedByAnotherStartsWithNothing) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  {
    GuardPeer first = GuardPeer::Hello(daemon.session, id);
    first.InForce();
    ASSERT_TRUE(first.Context().granted);
    first.Notice(1);
    ASSERT_TRUE(first.Credit(kGiB).granted);
    first.Commit(kGiB);
  }
  // It says hello as one that never had pages, and its GPU memory is gone.
  GuardPeer second = GuardPeer::Hello(daemon.session, id);
  EXPECT_EQ(second.welcome->resumed, 0u);
  EXPECT_EQ(second.gpu().committed_bytes, 0u);
  EXPECT_EQ(second.gpu().credit_free_bytes, 0);
  EXPECT_EQ(TenantOf(id)["mem_used_bytes"], 0);
  EXPECT_TRUE(second.Credit(2 * kGiB).granted);
  EXPECT_EQ(TenantOf(id)["members"].size(), 1u);
}

TEST_F(DaemonTest, AProgramWithoutCudaThatIsExecutedByAnotherHoldsNothing) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    figures.Set(getpid(), kContext);
    ASSERT_TRUE(guard.Credit(kGiB).granted);
    guard.Commit(kGiB);
    figures.Set(getpid(), kContext + kGiB);
  }
  // As long as the driver has something of it, it may come back.
  EXPECT_GE(TenantOf(id)["mem_used_bytes"], kGiB);
  figures.Set(getpid(), 0);
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["mem_used_bytes"] == 0; }));
}

TEST_F(DaemonTest, RefusesGuardsOfNoTenantAndOfOtherVersions) {
  EXPECT_EQ(GuardPeer::Hello(daemon.session, "t-nosuch").refused.reason,
            static_cast<uint32_t>(GPUMUX_REASON_NOT_A_TENANT));
  RunPeer run(daemon.session, Ask(kGiB));
  run.Granted();
  GuardPeer guard;
  guard.socket = ipc::SeqpacketSocket::Connect(daemon.session).value();
  gpumux_guard_hello hello{};
  hello.pages_version = GPUMUX_PAGES_VERSION + 1;
  EXPECT_EQ(guard.Call<gpumux_refused>(GPUMUX_GUARD_HELLO, hello).reason,
            static_cast<uint32_t>(GPUMUX_REASON_OTHER_VERSION));
}

}  // namespace
}  // namespace gpumux::daemon
