// SPDX-License-Identifier: Apache-2.0
//
// What NVML shows: what is charged for it, what is promised beside it, and what is
// done about those who take more than was granted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

TEST_F(DaemonTest, ChargesContextsAndFollowsWhatNvmlShows) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  guard.InForce();
  ASSERT_TRUE(guard.Context().granted);
  figures.Set(getpid(), kContext);
  guard.Notice(1);
  EXPECT_EQ(guard.Info().used_bytes, kContext + kShare + kAllowance);
  // Kernels are loaded lazily: 94 MiB more, and the allowance stays in front.
  figures.Set(getpid(), kContext + 94 * kMiB);
  EXPECT_TRUE(
      WaitUntil([&] { return guard.Info().used_bytes == kContext + kShare + 94 * kMiB + kAllowance; }));
  // A context that failed costs nothing; one that was destroyed neither.
  ASSERT_TRUE(guard.Context().granted);
  EXPECT_EQ(guard.Info().used_bytes, 2 * (kContext + kShare) + 94 * kMiB + 2 * kAllowance);
  guard.Notice(1);
  EXPECT_EQ(guard.Info().used_bytes, kContext + kShare + 94 * kMiB + kAllowance);
  figures.Set(getpid(), 0);
  guard.Notice(0);
  EXPECT_EQ(guard.Info().used_bytes, 0u);
}

TEST_F(DaemonTest, ThePeakOfAShortProgramHasItsContext) {
  RunPeer run(daemon.session, Ask(20 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Child program([&] {
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    guard.InForce();
    if (!guard.Context().granted) return 1;
    figures.Set(getpid(), kContext);
    guard.Notice(1);
    if (!guard.Credit(10 * kGiB).granted) return 2;
    guard.Commit(10 * kGiB);
    guard.gpu().peak_bytes = 10 * kGiB;
    // Frees and leaves at once: no reading falls in between.
    guard.Commit(-10 * kGiB);
    guard.Return(10 * kGiB);
    figures.Set(getpid(), 0);
    guard.Notice(0);
    return guard.Info().used_bytes == 0 ? 0 : 3;
  });
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_EQ(TenantOf(id)["mem_peak_bytes"], 10 * kGiB + kContext + kShare);
}

TEST_F(DaemonTest, DoesNotTakeACallThatCameAndWentForOverhead) {
  RunPeer run(daemon.session, Ask(8 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  guard.InForce();
  ASSERT_TRUE(guard.Context().granted);
  figures.Set(getpid(), kContext);
  guard.Notice(1);
  ASSERT_TRUE(guard.Credit(7 * kGiB).granted);
  guard.Return(7 * kGiB);
  figures.flicker_bytes = 7 * kGiB;
  figures.flickers = 2;
  EXPECT_EQ(TenantOf(id)["mem_used_bytes"], kContext + kShare);
  EXPECT_EQ(TenantOf(id)["above_limit"], false);
  // What stays is a fact.
  figures.flickers = 1'000'000;
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["mem_used_bytes"] == kContext + kShare + 7 * kGiB; }));
  figures.flickers = 0;
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["mem_used_bytes"] == kContext + kShare; }));
  figures.Set(getpid(), 0);
}

TEST_F(DaemonTest, FreezesATenantAboveItsLimitUntilItIsBelow) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  guard.InForce();
  ASSERT_TRUE(guard.Context().granted);
  figures.Set(getpid(), kContext + kGiB);  // memory that no call of the guard's announced
  guard.Notice(1);
  const auto* limits = guard.limits.as<gpumux_limits_page>();
  EXPECT_TRUE(WaitUntil([&] { return limits->state == GPUMUX_STATE_FROZEN; }));
  EXPECT_EQ(guard.Credit(1).reason, GPUMUX_REASON_LIMIT);
  EXPECT_EQ(TenantOf(id)["above_limit"], true);
  figures.Set(getpid(), kContext);
  EXPECT_TRUE(WaitUntil([&] { return limits->state == GPUMUX_STATE_RUNNING; }));
  EXPECT_TRUE(guard.Credit(1).granted);
  figures.Set(getpid(), 0);
}

TEST_F(DaemonTest, SubtractsWhatStrangersHold) {
  Child stranger([] {
    pause();
    return 0;
  });
  // Not below any tenant's run: this process runs none yet.
  figures.Set(stranger.pid(), 10 * kGiB);
  EXPECT_EQ(Gpu()["mem_unmanaged_bytes"], 10 * kGiB + kShare);
  EXPECT_EQ(Gpu()["unmanaged_pids"][0], stranger.pid());
  figures.unexplained_bytes = kGiB;
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["mem_unexplained_bytes"] == kGiB; }));
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 11 * kGiB - kShare);
  RunPeer run(daemon.session, Ask(135 * kGiB));
  const std::string reason = json::parse(run.Next(Type::kQueued).json)["reason"];
  EXPECT_THAT(reason, HasSubstr("10.0 GiB held by unmanaged pid " + std::to_string(stranger.pid()) +
                                " (daemon_test of "));
  EXPECT_THAT(reason, HasSubstr("), 1.0 GiB unexplained"));
  figures.Set(stranger.pid(), 0);
  figures.unexplained_bytes = 0;
  run.Granted();
}

TEST_F(DaemonTest, SaysNotEnforcedOfProcessesWithoutAGuardAndStopsStrictTenants) {
  json request = Ask(2 * kGiB);
  request["strict"] = true;
  RunPeer run(daemon.session, request);
  const std::string id = run.Granted()["tenant_id"];
  Child program([] {
    pause();
    return 0;
  });
  ASSERT_TRUE(run.client.SendStarted(json{{"pid", program.pid()}}.dump()));
  figures.Set(program.pid(), kContext);
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["members"].size() == 1; }));
  EXPECT_EQ(Gpu()["mem_unmanaged_bytes"], 0);
  EXPECT_EQ(program.Wait(), 128 + SIGTERM);
  ASSERT_TRUE(run.client.SendEnded(json{{"exit_code", nullptr}, {"signal", 15}}.dump()));
  for (int pid = 0; pid < FakeFigures::kMaxProcesses; ++pid) figures.processes[pid].pid = 0;
  const auto summary = json::parse(run.Next(Type::kSummary).json);
  EXPECT_THAT(std::string(summary["tenant"]["ended"]["why"]), HasSubstr("stopped by --strict: pid"));
  EXPECT_EQ(summary["tenant"]["enforced"]["memory"], "not enforced");
}

TEST_F(DaemonTest, NotEnforcedIsOfTheMoment) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Child program([] {
    pause();
    return 0;
  });
  figures.Set(program.pid(), kContext);
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["enforced"]["memory"] == "not enforced"; }));
  program.Kill();
  figures.Set(program.pid(), 0);
  program.Wait();
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["enforced"]["memory"] == nullptr; }));
  // The record of its end still says that it was not.
  ASSERT_TRUE(run.client.SendEnded(json{{"exit_code", 0}, {"signal", nullptr}}.dump()));
  const auto summary = json::parse(run.Next(Type::kSummary).json);
  EXPECT_EQ(summary["tenant"]["enforced"]["memory"], "not enforced");
}

TEST_F(DaemonTest, ChargesWhatTheDriverTookBeyondTheGrant) {
  RunPeer run(daemon.session, Ask(2 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  guard.InForce();
  ASSERT_TRUE(guard.Context().granted);
  figures.Set(getpid(), kContext + 300 * kMiB);
  guard.gpu().credit_free_bytes = -static_cast<int64_t>(300 * kMiB);
  guard.Commit(300 * kMiB);
  guard.Notice(1);
  EXPECT_TRUE(WaitUntil([&] { return TenantOf(id)["mem_used_bytes"] == kContext + kShare + 300 * kMiB; }));
  EXPECT_EQ(guard.gpu().credit_free_bytes, 0);
  EXPECT_EQ(TenantOf(id)["members"][0]["gpus"][0]["mem_granted_bytes"], 300 * kMiB);
  EXPECT_EQ(guard.Credit(2 * kGiB - kContext - 300 * kMiB).granted, 0u);
}

TEST_F(DaemonTest, MakesNoPromiseWhileNvmlIsLost) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  figures.lost = true;
  ASSERT_TRUE(WaitUntil([&] { return Gpu()["mem_promisable_bytes"] == 0; }));
  EXPECT_EQ(Gpu()["mem_unmanaged_bytes"], nullptr);
  RunPeer other(daemon.session, Ask(kGiB));
  const auto refused = other.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_TRUE(guard.Credit(kMiB).granted);  // what was promised goes on
  figures.lost = false;
  RunPeer third(daemon.session, Ask(kGiB));
  third.Granted();
}

}  // namespace
}  // namespace gpumux::daemon
