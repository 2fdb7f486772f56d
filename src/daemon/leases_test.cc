// SPDX-License-Identifier: Apache-2.0
//
// How a lease ends: stopped, with its program, or with a `run` that died; and what keeps it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "base/process.h"
#include "daemon/testing/daemon_fixture.h"

namespace gpumux::daemon {
namespace {

using nlohmann::json;
using Type = ipc::SessionEvent::Type;

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

TEST_F(DaemonTest, ARunThatLostItsSessionComesBack) {
  RunPeer run(daemon.session, Ask(kGiB));
  const std::string id = run.Granted()["tenant_id"];
  Child program([] { return pause(); });
  ASSERT_TRUE(run.client.SendStarted(json{{"pid", program.pid()}}.dump()));
  ASSERT_TRUE(WaitUntil([&] { return TenantOf(id)["state"] == "running"; }));
  // The daemon hangs up on what is out of place.
  ASSERT_TRUE(run.client.SendRequest(Ask(kGiB).dump()));
  EXPECT_EQ(run.Next(Type::kClosed).type, Type::kClosed);
  EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], kGiB);
  const std::string resume = json{{"tenant", id}, {"pid", program.pid()}}.dump();
  // Nobody else's.
  Child other([&] {
    auto client = ipc::SessionClient::Connect(daemon.session);
    (void)client->SendResume(resume, {});
    const auto event = client->Next(std::chrono::seconds(20));
    return event && *event && (*event)->type == Type::kRefused ? 0 : 1;
  });
  EXPECT_EQ(other.Wait(), 0);
  auto again = ipc::SessionClient::Connect(daemon.session);
  ASSERT_TRUE(again && again->SendResume(resume, {}));
  const auto resumed = again->Next(std::chrono::seconds(20));
  ASSERT_TRUE(resumed && *resumed);
  EXPECT_EQ((*resumed)->type, Type::kResumed);
  // And once more before its session was seen to be gone.
  auto third = ipc::SessionClient::Connect(daemon.session);
  ASSERT_TRUE(third && third->SendResume(resume, {}));
  const auto second = third->Next(std::chrono::seconds(20));
  ASSERT_TRUE(second && *second);
  EXPECT_EQ((*second)->type, Type::kResumed);
  program.Kill();
  EXPECT_EQ(program.Wait(), 128 + SIGKILL);
  ASSERT_TRUE(third->SendEnded(json{{"exit_code", nullptr}, {"signal", 9}}.dump()));
  const auto noted = third->Next(std::chrono::seconds(20));
  ASSERT_TRUE(noted && *noted);
  EXPECT_EQ((*noted)->type, Type::kNoted);
  const auto summary = third->Next(std::chrono::seconds(20));
  ASSERT_TRUE(summary && *summary);
  ASSERT_EQ((*summary)->type, Type::kSummary);
  EXPECT_EQ(json::parse((*summary)->json)["tenant"]["ended"]["signal"], 9);
  EXPECT_EQ(Gpu()["mem_guaranteed_bytes"], 0);
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

}  // namespace
}  // namespace gpumux::daemon
