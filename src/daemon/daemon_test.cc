// SPDX-License-Identifier: Apache-2.0
//
// The daemon over its real sockets, with figures of NVML that the test makes up.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

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

}  // namespace
}  // namespace gpumux::daemon
