// SPDX-License-Identifier: Apache-2.0
//
// Daemons that die, under tenants that work (docs/design/takeover.md).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "../support/sandbox.h"

namespace gpumux::test {
namespace {

constexpr uint64_t kGiB = 1ull << 30;
const std::string kProbe = Sandbox::TestProgram("guard_probe");

Process Survivor(Sandbox& box, const std::string& name, uint64_t bytes, const std::string& stop) {
  return box.Gpumux(
      {"run", "--mem", "8GiB", "--name", name, "--", kProbe, "survive", std::to_string(bytes), stop});
}

// `gpumux status`, while daemons die: {} when none answered.
nlohmann::json Status(Sandbox& box) {
  const Outcome o = box.RunGpumux({"status", "--json"});
  const auto parsed = nlohmann::json::parse(o.out, nullptr, false);
  return o.exit_code == 0 && parsed.contains("data") ? parsed["data"] : nlohmann::json::object();
}

// Every tenant's id, by name, of those that are not over.
std::map<std::string, std::string> Tenants(Sandbox& box) {
  std::map<std::string, std::string> ids;
  const nlohmann::json status = Status(box);
  if (!status.contains("tenants")) return ids;
  for (const auto& tenant : status["tenants"]) {
    if (tenant["state"] != "ended" && !tenant["id"].is_null()) ids[tenant["name"]] = tenant["id"];
  }
  return ids;
}

bool IsWhole(Sandbox& box, pid_t not_this_daemon, const std::map<std::string, std::string>& tenants) {
  const pid_t daemon = box.DaemonPid();
  if (daemon == 0 || daemon == not_this_daemon || Tenants(box) != tenants) return false;
  // The GPU is ours again when a `run` has handed its lock over.
  const auto status = Status(box);
  return status.contains("gpus") && status["gpus"][0]["mem_promisable_bytes"].is_number_unsigned() &&
         status["gpus"][0]["mem_promisable_bytes"] > 0;
}

void ExpectEverythingFree(Sandbox& box) {
  // A daemon to ask: the last may have died with the last of them.
  EXPECT_EQ(box.RunGpumux({"run", "--", "/bin/true"}).exit_code, 0);
  EXPECT_TRUE(WaitUntil("everything is free again", [&] {
    const auto status = Status(box);
    if (!status.contains("gpus")) return false;
    const auto& gpu = status["gpus"][0];
    return gpu["mem_guaranteed_bytes"] == 0 && gpu["mem_used_bytes"] == 0 && gpu["mem_unmanaged_bytes"] == 0;
  }));
}

TEST(Takeover, TenantsNeverNoticeThatTheirDaemonsDie) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  std::vector<Process> running;
  // The second asks the daemon each time: nothing so large stays as credit.
  for (const auto& [name, bytes] : {std::pair("a", 1 * kGiB), {"b", 7 * kGiB}, {"c", 3 * kGiB}})
    running.push_back(Survivor(box, name, bytes, stop));
  for (auto& p : running) {
    ASSERT_TRUE(WaitUntil("it works", [&] { return p.Out().find("working") != std::string::npos; }))
        << p.Err();
  }
  const auto tenants = Tenants(box);
  ASSERT_EQ(tenants.size(), 3u);
  for (int round = 0; round < 3; ++round) {
    const pid_t daemon = box.DaemonPid();
    ASSERT_NE(daemon, 0);
    ASSERT_EQ(kill(daemon, SIGKILL), 0);
    ASSERT_TRUE(WaitUntil("the next daemon has all of them", [&] { return IsWhole(box, daemon, tenants); }));
  }
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 24 * kGiB);
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_unmanaged_bytes"], 0);
  // It promises what is left, and not a byte more.
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "130GiB", "--no-wait", "--", "/bin/true"}).exit_code, 4);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "60GiB", "--no-wait", "--", "/bin/true"}).exit_code, 0);
  std::ofstream(stop).put('\n');
  for (auto& p : running) {
    const Outcome o = p.Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("rounds"), std::string::npos) << o.out;
  }
  ExpectEverythingFree(box);
}

// A daemon dies at one point of the code, once; nothing that `run` starts may fail by it.
class AtPoint : public ::testing::TestWithParam<const char*> {};

TEST_P(AtPoint, ProgramsRunAsIfNothingWereAndEveryByteReturns) {
  Sandbox box;
  const std::string token = box.dir() + "/token", stop = box.dir() + "/stop";
  std::ofstream(token).put('\n');
  box.SetEnv("GPUMUX_KILL_AT", std::string(GetParam()) + "@" + token);
  std::vector<Process> running;
  for (const auto& [name, bytes] : {std::pair("a", 1 * kGiB), {"b", 7 * kGiB}})
    running.push_back(Survivor(box, name, bytes, stop));
  for (auto& p : running) {
    ASSERT_TRUE(WaitUntil("it works", [&] { return p.Out().find("working") != std::string::npos; }))
        << p.Err();
  }
  // Points of a take-over need a death before them.
  const pid_t daemon = box.DaemonPid();
  const bool of_takeover =
      std::set<std::string>{"lease-taken", "run-resuming", "guard-taken"}.contains(GetParam());
  if (of_takeover) kill(daemon, SIGKILL);
  std::ofstream(stop).put('\n');
  for (auto& p : running) {
    const Outcome o = p.Wait();
    EXPECT_EQ(o.exit_code, 0) << o.out << o.err;
  }
  ExpectEverythingFree(box);
  // Whether a guard has something to ask before it ends is its own affair.
  const bool certain = std::string(GetParam()) != "guard-taken";
  EXPECT_TRUE(!certain || access(token.c_str(), F_OK) != 0) << "the point was not passed";
}

INSTANTIATE_TEST_SUITE_P(Points, AtPoint,
                         ::testing::Values("lease-stored", "lease-told", "program-started", "program-ended",
                                           "lease-ending", "guard-hello", "context-asked", "context-charged",
                                           "credit-asked", "credit-granted", "lease-taken", "run-resuming",
                                           "guard-taken"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Takeover, AStopGoesOn) {
  Sandbox box;
  const std::string token = box.dir() + "/token", stop = box.dir() + "/stop";
  std::ofstream(token).put('\n');
  box.SetEnv("GPUMUX_KILL_AT", "stop-stored@" + token);
  Process p = Survivor(box, "a", kGiB, stop);
  ASSERT_TRUE(WaitUntil("it works", [&] { return p.Out().find("working") != std::string::npos; })) << p.Err();
  box.RunGpumux({"stop", "a"});
  const Outcome o = p.Wait();
  EXPECT_NE(o.exit_code, 0) << o.out;
  ExpectEverythingFree(box);
}

TEST(Takeover, AWaitingRunAsksTheNextDaemon) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process holder = box.Gpumux(
      {"run", "--mem", "130GiB", "--name", "holder", "--", kProbe, "survive", std::to_string(kGiB), stop});
  ASSERT_TRUE(WaitUntil("it works", [&] { return holder.Out().find("working") != std::string::npos; }));
  Process waiter = box.Gpumux({"run", "--mem", "60GiB", "--name", "waiter", "--", "/bin/echo", "served"});
  ASSERT_TRUE(WaitUntil("it waits", [&] { return Tenants(box).size() == 2; }));
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("it waits again", [&] {
    return box.DaemonPid() != 0 && box.DaemonPid() != daemon && Tenants(box).size() == 2;
  }));
  std::ofstream(stop).put('\n');
  EXPECT_EQ(holder.Wait().exit_code, 0);
  const Outcome o = waiter.Wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.out, "served\n");
}

TEST(Takeover, ATenantThatEndedMeanwhileHoldsNothing) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop", other_stop = box.dir() + "/other";
  Process gone = Survivor(box, "gone", kGiB, stop), stays = Survivor(box, "stays", kGiB, other_stop);
  for (Process* p : {&gone, &stays}) {
    ASSERT_TRUE(WaitUntil("it works", [&] { return p->Out().find("working") != std::string::npos; }))
        << p->Err();
  }
  const pid_t daemon = box.DaemonPid();
  kill(daemon, SIGSTOP);  // it sees nothing of what comes
  kill(gone.pid(), SIGKILL);
  std::ofstream(stop).put('\n');
  gone.Wait();
  kill(daemon, SIGKILL);
  ASSERT_TRUE(WaitUntil("one is left", [&] {
    return box.DaemonPid() != daemon && box.DaemonPid() != 0 && Tenants(box).size() == 1;
  }));
  EXPECT_EQ(box.StatusData()["gpus"][0]["mem_guaranteed_bytes"], 8 * kGiB);
  std::ofstream(other_stop).put('\n');
  EXPECT_EQ(stays.Wait().exit_code, 0);
  ExpectEverythingFree(box);
}

TEST(Takeover, WithoutAStoreThereAreNoNewPromises) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim";
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  ASSERT_EQ(mkdir((dir + "/leases.db").c_str(), 0700), 0);
  const Outcome o = box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"});
  EXPECT_EQ(o.exit_code, 3) << o.err;
  EXPECT_NE(o.err.find("leases.db"), std::string::npos) << o.err;
}

TEST(Takeover, ABrokenStoreIsPutAside) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim";
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  std::ofstream(dir + "/leases.db") << std::string(8192, 'x');
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--", "/bin/true"}).exit_code, 0);
  EXPECT_EQ(access((dir + "/leases.db.broken").c_str(), F_OK), 0);
}

}  // namespace
}  // namespace gpumux::test
