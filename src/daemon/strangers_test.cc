// SPDX-License-Identifier: Apache-2.0
//
// Processes on the GPU without a lease, and promises that they grow into.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A process that is below none of ours: this one is the `run` of its tenants.
class Orphan {
 public:
  Orphan() {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    const pid_t middle = fork();
    if (middle == 0) {
      const pid_t test = getpid();
      if (fork() != 0) _exit(0);
      while (getppid() == test) usleep(1000);
      const pid_t self = getpid();
      if (write(fds[1], &self, sizeof self) != sizeof self) _exit(1);
      for (;;) pause();
    }
    waitpid(middle, nullptr, 0);
    EXPECT_EQ(read(fds[0], &pid_, sizeof pid_), static_cast<ssize_t>(sizeof pid_));
    close(fds[0]);
    close(fds[1]);
  }
  ~Orphan() { Kill(); }
  Orphan(const Orphan&) = delete;
  Orphan& operator=(const Orphan&) = delete;
  pid_t pid() const { return pid_; }
  void Kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = 0;
};

class StrangersTest : public DaemonTest {
 protected:
  std::vector<json> Events(const std::string& kind) {
    const json all = Http(daemon.api, "GET", "/v1/events").body["data"]["events"];
    std::vector<json> found;
    for (const json& event : all) {
      if (event["kind"] == kind) found.push_back(event);
    }
    return found;
  }

  Orphan stranger;
};

TEST_F(StrangersTest, AreShownWithWhoseTheyAre) {
  figures.Set(stranger.pid(), 10 * kGiB);
  const json shown = Gpu()["strangers"];
  ASSERT_EQ(shown.size(), 1u);
  EXPECT_EQ(shown[0]["pid"], stranger.pid());
  EXPECT_EQ(shown[0]["name"], "daemon_test");
  EXPECT_EQ(shown[0]["owner_uid"], getuid());
  EXPECT_EQ(shown[0]["mem_used_bytes"], 10 * kGiB + kShare);
  // Seen once, however often it is looked at; gone once.
  for (int i = 0; i < 5; ++i) Gpu();
  ASSERT_EQ(Events("stranger-seen").size(), 1u);
  EXPECT_THAT(std::string(Events("stranger-seen")[0]["text"]),
              HasSubstr("pid " + std::to_string(stranger.pid()) + " (daemon_test of "));
  EXPECT_EQ(Events("stranger-seen")[0]["gpus"][0], Gpu()["uuid"]);
  figures.Set(stranger.pid(), 0);
  EXPECT_EQ(Gpu()["strangers"].size(), 0u);
  EXPECT_EQ(Events("stranger-gone").size(), 1u);
}

TEST_F(StrangersTest, AreSeenWithinASecondOrSoWithoutBeingAskedFor) {
  figures.Set(stranger.pid(), kGiB);
  EXPECT_TRUE(WaitUntil([&] { return Events("stranger-seen").size() == 1; }, std::chrono::seconds(2)));
}

TEST_F(StrangersTest, WithAPidThatCannotBeSeenAreStillCounted) {
  // NVML may list pids of a pid namespace that is not ours.
  constexpr pid_t kNobody = 0x3ffffff;
  figures.Set(kNobody, kGiB);
  const json shown = Gpu()["strangers"];
  ASSERT_EQ(shown.size(), 1u);
  EXPECT_EQ(shown[0]["name"], nullptr);
  EXPECT_EQ(shown[0]["owner"], nullptr);
  for (int i = 0; i < 5; ++i) Gpu();
  EXPECT_EQ(Events("stranger-seen").size(), 1u);
}

TEST_F(StrangersTest, GrowingIntoPromisesPutThemAtRiskAndNobodyIsRefused) {
  RunPeer run(daemon.session, Ask(100 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  EXPECT_EQ(TenantOf(id)["mem_at_risk_bytes"], 0);
  figures.Set(stranger.pid(), 60 * kGiB);
  // Of 100 GiB of which none is used the stranger has taken what is beyond the rest.
  const uint64_t missing = 100 * kGiB + 60 * kGiB + kShare - kUsable;
  Gpu();
  EXPECT_EQ(TenantOf(id)["mem_at_risk_bytes"], missing);
  EXPECT_THAT(std::string(TenantOf(id)["gpus"][0]["at_risk_why"]),
              HasSubstr("pid " + std::to_string(stranger.pid()) + " (daemon_test of "));
  for (int i = 0; i < 5; ++i) Gpu();
  ASSERT_EQ(Events("at-risk").size(), 1u);
  EXPECT_EQ(Events("at-risk")[0]["tenant"], id);

  // The driver may not have them; but gpumux refuses nobody what it promised.
  GuardPeer guard = GuardPeer::Hello(daemon.session, id);
  guard.InForce();
  EXPECT_TRUE(guard.Credit(90 * kGiB).granted);
  guard.Commit(90 * kGiB);
  figures.Set(getpid(), 90 * kGiB);
  EXPECT_LE(TenantOf(id)["mem_at_risk_bytes"], 10 * kGiB);
  figures.Set(getpid(), 0);
  guard.Commit(-90 * kGiB);
  guard.Return(90 * kGiB);

  figures.Set(stranger.pid(), kGiB);
  EXPECT_EQ(Gpu()["strangers"][0]["mem_used_bytes"], kGiB + kShare);
  EXPECT_EQ(TenantOf(id)["mem_at_risk_bytes"], 0);
  EXPECT_TRUE(WaitUntil([&] { return Events("covered").size() == 1; }));
  EXPECT_EQ(Events("at-risk").size(), 1u);
}

TEST_F(StrangersTest, TakeOnlyFromWhoHasUnusedGuarantees) {
  RunPeer with(daemon.session, Ask(80 * kGiB));
  const std::string guaranteed = with.Granted()["tenant_id"];
  RunPeer without(daemon.session, Ask(std::nullopt));
  const std::string free = without.Granted()["tenant_id"];
  figures.Set(stranger.pid(), 90 * kGiB);
  Gpu();
  EXPECT_GT(TenantOf(guaranteed)["mem_at_risk_bytes"], 0);
  EXPECT_EQ(TenantOf(free)["mem_at_risk_bytes"], 0);
  ASSERT_EQ(Events("at-risk").size(), 1u);
}

class ReservationsTest : public StrangersTest {
 protected:
  HttpAnswer Reserve(pid_t pid, uint64_t bytes, const char* name = "outside") {
    return Http(daemon.api, "POST", "/v1/reservations",
                json{{"pid", pid}, {"mem", {{"bytes", bytes}}}, {"name", name}}.dump());
  }
};

TEST_F(ReservationsTest, KeepRoomForWhatAProcessHasAndWillHave) {
  figures.Set(stranger.pid(), 10 * kGiB);
  const uint64_t held = 10 * kGiB + kShare;
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - held);
  const auto answer = Reserve(stranger.pid(), 40 * kGiB);
  ASSERT_EQ(answer.status, 200) << answer.raw;
  const json tenant = answer.body["data"];
  const std::string id = tenant["id"];
  EXPECT_EQ(tenant["reservation_pid"], stranger.pid());
  EXPECT_EQ(tenant["mem_guaranteed_bytes"], 40 * kGiB);
  EXPECT_EQ(tenant["enforced"]["memory"], "not enforced");
  EXPECT_THAT(std::string(tenant["enforced"]["memory_reason"]), HasSubstr("outside gpumux"));
  // What it holds already is of the reservation, not counted twice.
  const json gpu = Gpu();
  EXPECT_EQ(gpu["mem_unmanaged_bytes"], 0);
  EXPECT_EQ(gpu["strangers"].size(), 0u);
  EXPECT_EQ(gpu["mem_promisable_bytes"], kUsable - 40 * kGiB);
  EXPECT_GE(TenantOf(id)["mem_used_bytes"], held);
  // Others are promised the rest and no more; it grows into its own.
  RunPeer run(daemon.session, Ask(90 * kGiB));
  const std::string other = run.Granted()["tenant_id"];
  figures.Set(stranger.pid(), 39 * kGiB);
  Gpu();
  EXPECT_EQ(TenantOf(other)["mem_at_risk_bytes"], 0);
  EXPECT_EQ(TenantOf(id)["above_limit"], false);
  // Beyond it, it is as any stranger: nobody can stop it, and it is said.
  figures.Set(stranger.pid(), 60 * kGiB);
  Gpu();
  EXPECT_GT(TenantOf(other)["mem_at_risk_bytes"], 0);
  figures.Set(stranger.pid(), 30 * kGiB);
  // It goes with its process.
  figures.Set(stranger.pid(), 0);
  stranger.Kill();
  EXPECT_TRUE(WaitUntil([&] { return Events("released").size() == 1; }));
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 90 * kGiB);
  EXPECT_EQ(Events("reserved").size(), 1u);
}

TEST_F(ReservationsTest, AreRefusedWhenTheyDoNotFitAndReleasedWhenAsked) {
  RunPeer run(daemon.session, Ask(100 * kGiB));
  run.Granted();
  figures.Set(stranger.pid(), 5 * kGiB);
  const auto refused = Reserve(stranger.pid(), 60 * kGiB);
  EXPECT_EQ(refused.status, 409);
  EXPECT_THAT(std::string(refused.body["error"]["message"]), HasSubstr("100.0 of 139.8 GiB guaranteed"));
  EXPECT_EQ(Gpu()["strangers"].size(), 1u);
  const auto answer = Reserve(stranger.pid(), 30 * kGiB);
  ASSERT_EQ(answer.status, 200) << answer.raw;
  const std::string id = answer.body["data"]["id"];
  EXPECT_EQ(Gpu()["strangers"].size(), 0u);
  // Twice, and to stop it, is refused.
  EXPECT_EQ(Reserve(stranger.pid(), kGiB).status, 409);
  EXPECT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/stop").status, 403);
  ASSERT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/release").status, 200);
  EXPECT_EQ(TenantOf(id)["state"], "ended");
  ASSERT_EQ(Events("released").size(), 1u);
  EXPECT_EQ(Events("released")[0]["user_uid"], getuid());
  EXPECT_EQ(Gpu()["strangers"].size(), 1u);
  EXPECT_EQ(Gpu()["mem_promisable_bytes"], kUsable - 105 * kGiB - kShare);
  EXPECT_EQ(kill(stranger.pid(), 0), 0);
}

TEST_F(ReservationsTest, AreForLivingProcessesOfOnesOwnThatAreNoTenants) {
  RunPeer run(daemon.session, Ask(10 * kGiB));
  const std::string id = run.Granted()["tenant_id"];
  EXPECT_EQ(Reserve(getpid(), 10 * kGiB).status, 409);               // the `run` of a tenant
  EXPECT_EQ(Reserve(daemon.process->pid(), 10 * kGiB).status, 403);  // the daemon
  EXPECT_EQ(Reserve(0x3ffffff, 10 * kGiB).status, 404);
  EXPECT_EQ(Http(daemon.api, "POST", "/v1/tenants/" + id + "/release").status, 400);
  for (const char* body :
       {"", "[]", "{}", R"({"pid":-1,"mem":{"bytes":1}})", R"({"pid":99999999999,"mem":{"bytes":1}})",
        R"({"pid":1,"mem":"much"})", R"({"pid":2})"}) {
    EXPECT_EQ(Http(daemon.api, "POST", "/v1/reservations", body).status, 400) << body;
  }
  // A guard below one is no tenant's: a reservation has no pages.
  ASSERT_EQ(Reserve(stranger.pid(), 10 * kGiB).status, 200);
}

TEST_F(ReservationsTest, OfAnotherUsersProcessAreRefused) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  FakeFigures& everyones_figures = *FakeFigures::Create();
  DaemonProcess everyones(everyones_figures, DaemonProcess::Settings{.for_everyone = true});
  const std::string body = json{{"pid", stranger.pid()}, {"mem", {{"bytes", 10 * kGiB}}}}.dump();
  Child other([&] {
    if (setuid(23003) != 0) return 98;
    if (Http(everyones.api, "POST", "/v1/reservations", body).status != 403) return 1;
    const json own{{"pid", getpid()}, {"mem", {{"bytes", 10 * kGiB}}}};
    const auto answer = Http(everyones.api, "POST", "/v1/reservations", own.dump());
    if (answer.status != 200) return 2;
    const std::string id = answer.body["data"]["id"];
    if (answer.body["data"]["owner_uid"] != 23003) return 3;
    return Http(everyones.api, "POST", "/v1/tenants/" + id + "/release").status == 200 ? 0 : 4;
  });
  EXPECT_EQ(other.Wait(), 0);
}

}  // namespace
}  // namespace gpumux::daemon
