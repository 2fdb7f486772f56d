// SPDX-License-Identifier: Apache-2.0
//
// The daemon as a whole, over its real sockets, with figures of NVML that the test
// makes up: a promise from its request to its end, the API, several daemons or GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Type = ipc::SessionEvent::Type;

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
  Child runner([&] {
    RunPeer run(idle.session, Ask(kGiB));
    return run.Granted()["tenant_id"].is_string() ? 0 : 1;
  });
  EXPECT_EQ(runner.Wait(), 0);
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
