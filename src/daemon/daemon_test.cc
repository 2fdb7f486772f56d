// SPDX-License-Identifier: Apache-2.0
//
// The daemon over its real sockets, with figures of NVML that the test makes up.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "base/process.h"
#include "base/units.h"
#include "daemon/testing/peers.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

constexpr uint64_t kContext = 543162368;  // NVML's own figure of a context on an H200
constexpr uint64_t kShare = 5832704;      // and what the device shows beyond
constexpr uint64_t kAllowance = 64 * kMiB;
constexpr uint64_t kUsable = 150754820096 - 644939776 - 3407872;

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() : figures(*FakeFigures::Create()), daemon(figures) {}

  json Status() { return Http(daemon.api, "GET", "/v1/status").body["data"]; }
  json Gpu() { return Status()["gpus"][0]; }
  json TenantOf(const std::string& id) { return Http(daemon.api, "GET", "/v1/tenants/" + id).body["data"]; }

  FakeFigures& figures;
  DaemonProcess daemon;
};

TEST_F(DaemonTest, KeepsAPromiseFromRequestToReturnedBytes) {
  RunPeer run(daemon.session, Ask(40 * kGiB));
  const json granted = run.Granted();
  const std::string id = granted["tenant_id"];
  EXPECT_EQ(granted["mode"], "timeslice");
  EXPECT_EQ(granted["gpus"][0]["mem_guaranteed_bytes"], 40 * kGiB);
  EXPECT_EQ(granted["env"]["GPUMUX_TENANT"], id);
  EXPECT_EQ(granted["env"]["GPUMUX_SESSION"], daemon.session);
  EXPECT_EQ(granted["env"]["CUDA_VISIBLE_DEVICES"], granted["gpus"][0]["uuid"]);
  EXPECT_EQ(run.granted.locks.size(), 1u);
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 40 * kGiB);

  // The program: says hello, makes a context, allocates, and dies.
  int go[2], done[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(done), 0);
  Child program([&] {
    char byte = 0;
    (void)!read(go[0], &byte, 1);
    GuardPeer guard = GuardPeer::Hello(daemon.session, id);
    if (!guard.welcome || guard.welcome->gpu_count != 1) return 10;
    if (mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, guard.limits.read_write(), 0) != MAP_FAILED) return 11;
    const auto* limits = guard.limits.as<gpumux_limits_page>();
    if (limits->gpus[0].limit_bytes != 40 * kGiB) return 12;
    guard.InForce();
    const auto context = guard.Context();
    if (!context.granted || context.charged_bytes != kContext + kShare + kAllowance) return 13;
    figures.Set(getpid(), kContext);
    guard.Notice(1);
    const auto credit = guard.Credit(10 * kGiB);
    if (!credit.granted) return 14;
    figures.Set(getpid(), kContext + 10 * kGiB);
    guard.Commit(10 * kGiB);
    const auto info = guard.Info();
    if (info.total_bytes != 40 * kGiB || info.used_bytes != 10 * kGiB + kContext + kShare + kAllowance ||
        info.free_bytes != info.total_bytes - info.used_bytes) {
      return 15;
    }
    if (guard.Credit(30 * kGiB).reason != GPUMUX_REASON_LIMIT) return 16;
    (void)!write(done[1], "x", 1);
    pause();
    return 0;
  });
  ASSERT_TRUE(run.client.SendStarted(json{{"pid", program.pid()}}.dump()));
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["state"] == "running"; }));
  ASSERT_EQ(write(go[1], "x", 1), 1);
  close(done[1]);
  char byte = 0;
  ASSERT_EQ(read(done[0], &byte, 1), 1) << "exit code " << program.Wait();

  json tenant = TenantOf(id);
  EXPECT_EQ(tenant["mem_used_bytes"], 10 * kGiB + kContext + kShare);
  // What is charged ahead is shown: used + allowance + told free is the limit.
  EXPECT_EQ(tenant["mem_allowance_bytes"], kAllowance);
  EXPECT_EQ(tenant["gpus"][0]["mem_allowance_bytes"], kAllowance);
  EXPECT_EQ(tenant["enforced"]["memory"], "guard");
  EXPECT_EQ(tenant["members"][0]["pid"], program.pid());
  EXPECT_EQ(Gpu()["mem_unmanaged_bytes"], 0);
  EXPECT_EQ(Gpu()["mem_unexplained_bytes"], 0);

  // Dead, but the driver still holds its memory: so does the tenant.
  program.Kill();
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["members"][0]["alive"] == false; }));
  const pid_t pid = program.pid();
  program.Wait();
  ASSERT_TRUE(run.client.SendEnded(json{{"exit_code", nullptr}, {"signal", 9}}.dump()));
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 40 * kGiB);
  figures.Set(pid, 0);
  const auto summary = json::parse(run.Next(Type::kSummary).json);
  EXPECT_EQ(summary["tenant"]["ended"]["why"], "killed by signal 9");
  EXPECT_EQ(summary["tenant"]["ended"]["signal"], 9);
  EXPECT_EQ(summary["tenant"]["mem_used_bytes"], 0);
  EXPECT_GE(summary["tenant"]["mem_peak_bytes"], 10 * kGiB + kContext + kShare);
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["mem_promisable_bytes"] == kUsable; })) << Gpu().dump(1);
  EXPECT_EQ(Gpu()["mode"], nullptr);
  EXPECT_EQ(Http(daemon.api, "GET", "/v1/tenants").body["data"]["tenants"].size(), 0u);
  EXPECT_EQ(Http(daemon.api, "GET", "/v1/tenants?all=1").body["data"]["tenants"].size(), 1u);
}

// Waits for a byte from the other side of a fork, or sends one.
struct Baton {
  Baton() { EXPECT_EQ(pipe(fds), 0); }
  ~Baton() {
    close(fds[0]);
    close(fds[1]);
  }
  void Pass() const { EXPECT_EQ(write(fds[1], "x", 1), 1); }
  void Take() const {
    char byte = 0;
    EXPECT_EQ(read(fds[0], &byte, 1), 1);
  }
  int fds[2];
};

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

TEST_F(DaemonTest, QueuesWhatDoesNotFitAndStartsItWhenItDoes) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  const std::string first_id = first.Granted()["tenant_id"];
  RunPeer second(daemon.session, Ask(100 * kGiB));
  const json queued = json::parse(second.Next(Type::kQueued).json);
  EXPECT_EQ(queued["position"], 1);
  EXPECT_THAT(queued["reason"],
              HasSubstr("needs 100.0 GiB, 39.8 GiB can be promised (100.0 of 139.8 GiB guaranteed"));
  EXPECT_EQ(queued["holders"][0]["id"], first_id);
  RunPeer third(daemon.session, Ask(std::nullopt));
  EXPECT_EQ(json::parse(third.Next(Type::kQueued).json)["position"], 2);
  const json status = Status();
  EXPECT_EQ(status["tenants"][1]["state"], "waiting");
  EXPECT_EQ(status["tenants"][1]["waiting"]["position"], 1);
  EXPECT_EQ(status["tenants"][2]["waiting"]["position"], 2);

  first = RunPeer(daemon.session, Ask(200 * kGiB));  // the old connection is closed: its lease ends
  EXPECT_EQ(second.Granted()["gpus"][0]["mem_guaranteed_bytes"], 100 * kGiB);
  EXPECT_EQ(third.Granted()["gpus"][0]["mem_limit_bytes"], nullptr);
  const auto refused = first.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.refusal, HasSubstr("can never promise more than 139.8 GiB"));
}

TEST_F(DaemonTest, RefusesAtOnceWhoDoesNotWait) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  json request = Ask(100 * kGiB);
  request["wait"] = false;
  RunPeer second(daemon.session, request);
  const auto refused = second.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.refusal, HasSubstr("wait with --wait or ask for less"));
}

TEST_F(DaemonTest, GivesUpWaitingWhenAsked) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  json request = Ask(100 * kGiB);
  request["wait_seconds"] = 0.05;
  RunPeer second(daemon.session, request);
  const auto refused = second.Next(Type::kGranted);
  EXPECT_EQ(refused.type, Type::kRefused);
  EXPECT_EQ(refused.exit_code, 5);
}

TEST_F(DaemonTest, ForgetsARequestThatHangsUp) {
  RunPeer first(daemon.session, Ask(100 * kGiB));
  first.Granted();
  auto second = std::make_unique<RunPeer>(daemon.session, Ask(120 * kGiB));
  second->Next(Type::kQueued);
  RunPeer third(daemon.session, Ask(20 * kGiB));
  third.Next(Type::kQueued);
  second.reset();
  third.Granted();
}

TEST_F(DaemonTest, GivesExclusiveTenantsAllThatCanBePromised) {
  json request = Ask(std::nullopt);
  request["mode"] = "exclusive";
  RunPeer run(daemon.session, request);
  EXPECT_EQ(run.Granted()["gpus"][0]["mem_guaranteed_bytes"], kUsable);
  RunPeer other(daemon.session, Ask(std::nullopt));
  EXPECT_THAT(std::string(json::parse(other.Next(Type::kQueued).json)["reason"]),
              HasSubstr("is in mode exclusive"));
  EXPECT_EQ(Gpu()["mode"], "exclusive");
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
  EXPECT_THAT(std::string(json::parse(run.Next(Type::kQueued).json)["reason"]),
              HasSubstr("10.0 GiB held by unmanaged pid " + std::to_string(stranger.pid()) +
                        ", 1.0 GiB unexplained"));
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

TEST_F(DaemonTest, AStopEndsALeaseWhoseRunNeitherStartsNorReports) {
  Child runner([&] {
    RunPeer run(daemon.session, Ask(kGiB));
    run.Granted();
    for (;;) pause();
    return 0;
  });
  ASSERT_TRUE(WaitUntil([&] { return Status()["tenants"].size() == 1; }));
  const std::string id = Status()["tenants"][0]["id"];
  ASSERT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/stop", R"({"grace_seconds":0})").status, 200);
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["tenants"] == 0; }));
  EXPECT_EQ(runner.Wait(), 128 + SIGKILL);
}

TEST_F(DaemonTest, StopsATenantAndItsDescendants) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Baton ready;
  // The program obeys, what it started does not: it too is gone in the end.
  static std::atomic<pid_t>& stubborn = *new (
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<pid_t>{0};
  Child program([&] {
    const pid_t pid = fork();
    if (pid != 0) stubborn = pid;
    if (pid == 0) {
      signal(SIGTERM, SIG_IGN);
      ready.Pass();
      for (;;) pause();
    }
    pause();
    return 0;
  });
  ready.Take();
  ASSERT_TRUE(run.client.SendStarted(json{{"pid", program.pid()}}.dump()));
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["state"] == "running"; }));
  EXPECT_EQ(Http(daemon.api, "POST", "/v1/tenants/t-nosuch/stop").status, 404);
  EXPECT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/stop", R"({"signal":99})").status, 400);
  EXPECT_EQ(
      Http(daemon.api, "POST", "/v1/tenants/" + id + "/stop", R"({"signal":15,"grace_seconds":0.1})").status,
      200);
  EXPECT_EQ(program.Wait(), 128 + SIGTERM);
  ASSERT_TRUE(run.client.SendEnded(json{{"exit_code", nullptr}, {"signal", 15}}.dump()));
  const auto summary = json::parse(run.Next(Type::kSummary).json);
  EXPECT_EQ(summary["tenant"]["ended"]["why"], "stopped by root");
  const auto stat = ReadProcessStat(stubborn);
  EXPECT_TRUE(!stat || stat->state == 'Z') << stubborn;
}

TEST_F(DaemonTest, EndsTheLeaseOfARunThatDiesBeforeItsProgramStarts) {
  Child runner([&] {
    RunPeer run(daemon.session, Ask(kGiB));
    run.Granted();
    pause();
    return 0;
  });
  ASSERT_TRUE(WaitUntil([&] { return Gpu()["tenants"] == 1; }));
  runner.Kill();
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["tenants"] == 0; }));
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable);
}

TEST_F(DaemonTest, KeepsTheLeaseOfAProgramWhoseRunWasKilled) {
  Baton started;
  auto* program_pid = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<pid_t>{0};
  Child runner([&] {
    RunPeer run(daemon.session, Ask(kGiB));
    run.Granted();
    const pid_t pid = fork();
    if (pid == 0) {
      pause();
      _exit(0);
    }
    *program_pid = pid;
    (void)run.client.SendStarted(json{{"pid", pid}}.dump());
    started.Pass();
    pause();
    return 0;
  });
  started.Take();
  ASSERT_TRUE(WaitUntil([&] { return Status()["tenants"][0]["state"] == "running"; }));
  runner.Kill();
  runner.Wait();
  EXPECT_EQ(Gpu()["tenants"], 1);
  ::kill(*program_pid, SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["tenants"] == 0; }));
}

// A process in the background of a tenant: below nobody, with the tenant's id in its environment.
class Background {
 public:
  explicit Background(const std::string& tenant_id) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    const pid_t middle = fork();
    if (middle == 0) {
      const pid_t pid = fork();
      if (pid == 0) {
        setsid();
        execle("/bin/sleep", "sleep", "60", nullptr,
               std::array<const char*, 2>{("GPUMUX_TENANT=" + tenant_id).c_str(), nullptr}.data());
        _exit(127);
      }
      (void)!write(fds[1], &pid, sizeof pid);
      _exit(0);
    }
    EXPECT_EQ(read(fds[0], &pid_, sizeof pid_), static_cast<ssize_t>(sizeof pid_));
    waitpid(middle, nullptr, 0);
    close(fds[0]);
    close(fds[1]);
    EXPECT_TRUE(WaitUntil([&] { return ReadEnvironment(pid_).size() == 1; }));
  }
  ~Background() { ::kill(pid_, SIGKILL); }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST_F(DaemonTest, WhatAProgramLeavesInTheBackgroundKeepsTheLease) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Background first(id);
  Background second(id);
  ASSERT_TRUE(run.client.SendEnded(json{{"exit_code", 0}, {"signal", nullptr}}.dump()));
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["left_behind_pids"].size() == 2; }))
      << TenantOf(id).dump(1);
  run = RunPeer(daemon.session, Ask(kGiB));  // the old connection is closed
  run.Granted();
  EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], 2 * kGiB);
  // One that first uses the GPU now is the tenant's.
  figures.Set(first.pid(), kContext);
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["members"].size() == 1; })) << Gpu().dump(1);
  EXPECT_EQ(TenantOf(id)["members"][0]["pid"], first.pid());
  figures.Set(first.pid(), 0);
  ::kill(first.pid(), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["left_behind_pids"] == json{second.pid()}; }));
  EXPECT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/stop").status, 200);
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["mem_guaranteed_bytes"] == kGiB; }));
  EXPECT_FALSE(ReadProcessStat(second.pid()).has_value() && ReadProcessStat(second.pid())->state != 'Z');
}

TEST_F(DaemonTest, KeepsTheLeaseOfAProgramWhoseRunDiedBeforeItWasHeard) {
  Baton granted, go, sent;
  auto* program_pid = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<pid_t>{0};
  Child runner([&] {
    RunPeer run(daemon.session, Ask(kGiB));
    run.Granted();
    granted.Pass();
    go.Take();
    const pid_t pid = fork();
    if (pid == 0) {
      for (;;) pause();
    }
    *program_pid = pid;
    (void)run.client.SendStarted(json{{"pid", pid}}.dump());
    sent.Pass();
    for (;;) pause();
    return 0;
  });
  granted.Take();
  // The daemon is busy elsewhere while all this happens.
  daemon.process->Kill(SIGSTOP);
  go.Pass();
  sent.Take();
  runner.Kill();
  runner.Wait();
  daemon.process->Kill(SIGCONT);
  ASSERT_TRUE(WaitUntil([&] { return Status()["tenants"][0]["pid"] == program_pid->load(); }))
      << Status().dump(1);
  EXPECT_EQ(Gpu()["tenants"], 1);
  ::kill(*program_pid, SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return Gpu()["tenants"] == 0; }));
}

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

TEST_F(DaemonTest, BelievesNoPageThatLies) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  RunPeer neighbour(daemon.session, Ask(10 * kGiB));
  neighbour.Granted();
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  ASSERT_TRUE(guard.Credit(100 * kMiB).granted);
  for (const int64_t lie : {INT64_MAX, INT64_MIN, int64_t{-1}, int64_t{1} << 50}) {
    guard.gpu().credit_free_bytes = lie;
    guard.gpu().committed_bytes = static_cast<uint64_t>(lie);
    guard.gpu().contexts = guard.gpu().peak_bytes = static_cast<uint64_t>(lie);
    EXPECT_EQ(guard.Credit(kGiB + 1).granted, 0u);
    EXPECT_LE(TenantOf(id)["mem_used_bytes"], kGiB);
    EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 11 * kGiB);
    EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], 11 * kGiB);
  }
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

TEST_F(DaemonTest, HangsUpOnGarbageAndGoesOn) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  const auto ends_it = [&](std::span<const std::byte> packet, bool after_hello) {
    GuardPeer guard;
    if (after_hello)
      guard = GuardPeer::Hello(daemon.session, id);
    else
      guard.socket = ipc::SeqpacketSocket::Connect(daemon.session).value();
    if (!guard.socket.Send(packet)) return true;
    while (guard.Receive()) {
    }
    return true;
  };
  uint64_t random = 12345;
  const auto next = [&random] {
    return random = random * 6364136223846793005u + 1442695040888963407u, random >> 33;
  };
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> packet(next() % 200 + 1);
    for (auto& byte : packet) byte = static_cast<std::byte>(next());
    if (i % 3 == 0 && packet.size() >= sizeof(gpumux_frame)) {
      gpumux_frame frame{GPUMUX_SESSION_MAGIC, GPUMUX_SESSION_VERSION, static_cast<uint16_t>(next() % 12 + 1),
                         static_cast<uint32_t>(packet.size() - sizeof(gpumux_frame)), 1};
      if (frame.type == GPUMUX_GUARD_HELLO) frame.type = GPUMUX_GUARD_WELCOME;
      std::memcpy(packet.data(), &frame, sizeof frame);
    }
    EXPECT_TRUE(ends_it(packet, i % 2));
  }
  const gpumux_credit_request far{99, 0, 1};
  EXPECT_TRUE(ends_it(ipc::EncodeStruct(GPUMUX_CREDIT_REQUEST, 1, far), true));
  EXPECT_TRUE(ends_it(ipc::EncodeStruct(GPUMUX_CREDIT_REQUEST, 1, gpumux_credit_request{0, 0, 1}), false));
  EXPECT_TRUE(ends_it(*ipc::EncodeText(GPUMUX_RUN_REQUEST, 1, "{}"), true));
  EXPECT_TRUE(ends_it(*ipc::EncodeText(GPUMUX_RUN_STARTED, 1, "{\"pid\":1}"), false));
  EXPECT_EQ(TenantOf(id)["state"], "starting");
}

TEST_F(DaemonTest, RefusesRequestsThatAreWrong) {
  for (const char* text :
       {"[]", "nonsense", "{\"command\":[]}", "{\"command\":[\"x\"],\"mem\":{\"bytes\":-1}}"}) {
    auto client = ipc::SessionClient::Connect(daemon.session).value();
    ASSERT_TRUE(client.SendRequest(text));
    const auto event = client.Next(std::chrono::seconds(20));
    ASSERT_TRUE(event && *event);
    EXPECT_EQ((*event)->type, Type::kRefused);
    EXPECT_EQ((*event)->exit_code, 2) << text;
  }
}

TEST_F(DaemonTest, ServesTheApiWithinBounds) {
  const auto version = Http(daemon.api, "GET", "/v1/version");
  EXPECT_EQ(version.status, 200);
  EXPECT_EQ(version.body["schema"], "gpumux.version/1");
  EXPECT_EQ(version.body["simulated"], true);
  EXPECT_EQ(Http(daemon.api, "GET", "/").status, 404);
  EXPECT_EQ(Http(daemon.api, "DELETE", "/v1/status").status, 404);
  EXPECT_EQ(Http(daemon.api, "GET", "/v1/tenants/..%2f..").status, 404);
  EXPECT_EQ(Http(daemon.api, "GET", "/v1/tenants/t-none").body["error"]["code"], "not_found");
  EXPECT_EQ(HttpRaw(daemon.api, "rubbish\r\n\r\n").status, 400);
  EXPECT_EQ(
      HttpRaw(daemon.api, "POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n").status,
      413);
  EXPECT_EQ(HttpRaw(daemon.api, "GET / HTTP/1.1\r\nX: " + std::string(20000, 'a') + "\r\n\r\n").status, 413);
  EXPECT_EQ(Http(daemon.api, "GET", "/v1/status").status, 200);
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

// A daemon for everyone, and another user who does what that allows.
class Strangers : public testing::Test {
 protected:
  static constexpr uid_t kStranger = 23003;
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    daemon = std::make_unique<DaemonProcess>(
        figures, DaemonProcess::Settings{.for_everyone = true, .most_descriptors = 1024});
  }
  Child AsStranger(const std::function<int()>& body) {
    return Child([&] { return setuid(kStranger) == 0 ? body() : 98; });
  }
  FakeFigures& figures = *FakeFigures::Create();
  std::unique_ptr<DaemonProcess> daemon;
};

TEST_F(Strangers, MayLookButNotTouch) {
  RunPeer run(daemon->session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  auto* reason = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<int>{-1};
  Child stranger = AsStranger([&] {
    if (Http(daemon->api, "GET", "/v1/tenants/" + id).status != 200) return 1;
    const auto stop = Http(daemon->api, "POST", "/v1/tenants/" + id + "/stop");
    if (stop.status != 403 || stop.body["error"]["code"] != "denied") return 2;
    // Its own tenant it may stop.
    RunPeer own(daemon->session, Ask(kGiB));
    const std::string own_id = own.Granted()["tenant_id"];
    if (Http(daemon->api, "POST", "/v1/tenants/" + own_id + "/stop").status != 200) return 3;
    // Who is below nobody, and names a tenant that is not its user's, belongs to none.
    const pid_t middle = fork();
    if (middle == 0) {
      const pid_t parent = getpid();
      if (fork() != 0) _exit(0);
      if (!WaitUntil([&] { return getppid() != parent; })) _exit(1);
      *reason = static_cast<int>(GuardPeer::Hello(daemon->session, id).refused.reason);
      _exit(0);
    }
    waitpid(middle, nullptr, 0);
    return 0;
  });
  EXPECT_EQ(stranger.Wait(), 0);
  ASSERT_TRUE(WaitUntil([&] { return *reason >= 0; }));
  EXPECT_EQ(*reason, GPUMUX_REASON_NOT_A_TENANT);
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/tenants/" + id).body["data"]["members"].size(), 0u);
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/tenants/" + id).body["data"]["state"], "starting");
}

TEST_F(Strangers, CannotKeepOthersOut) {
  auto* ready = new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
      std::atomic<int>{0};
  std::vector<Child> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.push_back(AsStranger([&] {
      std::vector<UniqueFd> open;
      // Waiting requests, silent sessions, and half a request each to the API.
      std::vector<std::unique_ptr<RunPeer>> waiting;
      for (int k = 0; k < 20; ++k) {
        if (auto fd = ipc::ConnectUnix(daemon->api, SOCK_STREAM)) {
          (void)send(fd->get(), "GET /v1/st", 10, MSG_NOSIGNAL);
          open.push_back(std::move(*fd));
        }
        if (auto client = ipc::SessionClient::Connect(daemon->session)) {
          if (k % 2 == 0) (void)client->SendRequest(Ask(1000 * kGiB).dump());
          open.emplace_back(dup(client->fd()));
        }
      }
      ++*ready;
      for (;;) pause();
      return 0;
    }));
  }
  ASSERT_TRUE(WaitUntil([&] { return *ready == 20; }));
  RunPeer run(daemon->session, Ask(kGiB));
  run.Granted();
  EXPECT_EQ(Http(daemon->api, "GET", "/v1/status").status, 200);
}

TEST_F(Strangers, WithoutDescriptorsTheDaemonWaitsQuietly) {
  daemon = std::make_unique<DaemonProcess>(figures, DaemonProcess::Settings{.most_descriptors = 64});
  std::vector<Child> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.emplace_back([&] {
      std::vector<UniqueFd> open;
      for (int k = 0; k < 32; ++k) {
        if (auto fd = ipc::ConnectUnix(daemon->session, SOCK_SEQPACKET)) open.push_back(std::move(*fd));
      }
      for (;;) pause();
      return 0;
    });
  }
  const std::string log = daemon->dir + "/gpumuxd.log";
  const auto lines = [&] {
    std::ifstream file(log);
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  const auto before = lines();
  ASSERT_TRUE(WaitUntil([&] { return lines() > before; }));  // it ran out
  // Two more sessions' worth of lines at five a second, not a line a turn of the loop.
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(WaitUntil([&] { return std::chrono::steady_clock::now() - start > std::chrono::seconds(1); }));
  EXPECT_LT(lines() - before, 20);
  crowd.clear();
  RunPeer run(daemon->session, Ask(kGiB));
  run.Granted();
}

class TwoDaemons : public testing::Test {
 protected:
  FakeFigures& figures = *FakeFigures::Create();
};

TEST_F(TwoDaemons, NeverPromiseTheSameGpu) {
  DaemonProcess first(figures,
                      {.gpus = 1, .software_dir = "/tmp/gpumuxd-test-shared-" + std::to_string(getpid())});
  DaemonProcess second(figures,
                       {.gpus = 1, .software_dir = "/tmp/gpumuxd-test-shared-" + std::to_string(getpid())});
  auto run = std::make_unique<RunPeer>(first.session, Ask(kGiB));
  run->Granted();
  {
    RunPeer other(second.session, Ask(kGiB));
    const auto refused = other.Next(Type::kGranted);
    EXPECT_EQ(refused.type, Type::kRefused);
    EXPECT_EQ(refused.exit_code, 4);
    EXPECT_THAT(refused.refusal, HasSubstr("GPU 0 is managed by the gpumuxd of user root (pid " +
                                           std::to_string(first.process->pid()) + ")"));
    EXPECT_EQ(Http(second.api, "GET", "/v1/status").body["data"]["gpus"][0]["owner"]["pid"],
              first.process->pid());
  }
  // The owner is gone, its tenant is not: the bytes are still promised.
  first.process->Kill();
  first.process->Wait();
  {
    RunPeer other(second.session, Ask(kGiB));
    const auto refused = other.Next(Type::kGranted);
    EXPECT_EQ(refused.type, Type::kRefused);
    EXPECT_THAT(refused.refusal, HasSubstr("still has tenants of an earlier gpumuxd"));
  }
  run.reset();
  RunPeer other(second.session, Ask(kGiB));
  other.Granted();
}

TEST_F(TwoDaemons, LeaveWhenIdle) {
  DaemonProcess idle(figures, {.gpus = 1, .software_dir = "", .idle_exit = std::chrono::milliseconds(1)});
  auto run = std::make_unique<RunPeer>(idle.session, Ask(kGiB));
  run->Granted();
  run.reset();
  EXPECT_EQ(idle.process->Wait(), 0);
}

TEST_F(TwoDaemons, GiveSeveralGpusAllOrNone) {
  DaemonProcess daemon(figures, {.gpus = 2});
  json request = Ask(100 * kGiB);
  request["gpus"] = {{"count", 2}};
  RunPeer run(daemon.session, request);
  const json granted = run.Granted();
  EXPECT_EQ(granted["gpus"].size(), 2u);
  EXPECT_EQ(run.granted.locks.size(), 2u);
  GuardPeer guard = GuardPeer::Hello(daemon.session, granted["tenant_id"]);
  EXPECT_EQ(guard.welcome->gpu_count, 2u);
  EXPECT_TRUE(guard.Credit(100 * kGiB, 1).granted);
  guard.gpu(1).committed_bytes = 100 * kGiB;
  EXPECT_EQ(guard.Credit(1, 1).reason, GPUMUX_REASON_LIMIT);
  EXPECT_TRUE(guard.Credit(1, 0).granted);
}

}  // namespace
}  // namespace gpumux::daemon
