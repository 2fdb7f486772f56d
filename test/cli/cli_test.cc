// SPDX-License-Identifier: Apache-2.0
//
// `gpumux` as a process, with a real daemon on the software GPU: whose exit
// status it has, what signals do, and what happens when the daemon goes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/sandbox.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "ipc/seqpacket.h"

namespace gpumux::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json Tenants(Sandbox& box) { return box.StatusData()["tenants"]; }

// Daemons that were started for this sandbox and live.
std::vector<pid_t> Daemons(const Sandbox& box) {
  std::vector<pid_t> found;
  for (const pid_t pid : ListProcesses()) {
    const auto stat = ReadProcessStat(pid);
    if (!stat || stat->name != "gpumuxd" || stat->state == 'Z') continue;
    std::stringstream environment;
    environment << std::ifstream("/proc/" + std::to_string(pid) + "/environ").rdbuf();
    if (environment.str().find(box.runtime_dir()) != std::string::npos) found.push_back(pid);
  }
  return found;
}

TEST(Run, HasTheExitStatusOfItsProgram) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  EXPECT_EQ(box.RunGpumux({"run", "--", "sh", "-c", "exit 7"}).exit_code, 7);
  EXPECT_EQ(box.RunGpumux({"run", "--", "sh", "-c", "kill -9 $$"}).exit_code, 137);
  EXPECT_EQ(box.RunGpumux({"run", "--", "no-such-program"}).exit_code, 127);
  // Without a terminal and --summary it says nothing at all.
  const Outcome quiet = box.RunGpumux({"run", "--", "sh", "-c", "echo out; echo err >&2"});
  EXPECT_EQ(quiet.out, "out\n");
  EXPECT_EQ(quiet.err, "err\n");
}

TEST(Run, WrongValuesStartNoDaemon) {
  Sandbox box;
  for (const char* mem : {"", "10", "-1GiB", "99999999999GiB", "NaN"}) {
    const Outcome run = box.RunGpumux({"run", "--mem", mem, "--", "true"});
    EXPECT_EQ(run.exit_code, 2) << mem;
    EXPECT_THAT(run.err, HasSubstr("--mem")) << mem;
  }
  EXPECT_TRUE(Daemons(box).empty());
}

TEST(Run, ManyAtOnceStartOneDaemon) {
  Sandbox box;
  std::vector<Process> runs;
  for (int i = 0; i < 8; ++i) runs.push_back(box.Gpumux({"run", "--mem", "1GiB", "--", "true"}));
  for (Process& run : runs) {
    const Outcome ended = run.Wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  EXPECT_TRUE(WaitUntil("there is one daemon", [&] { return Daemons(box).size() == 1; }));
}

TEST(Run, PassesSignalsOnAndKeepsTheProgramsAnswer) {
  Sandbox box;
  Process run =
      box.Gpumux({"run", "--", "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(WaitUntil("the program is ready", [&] { return run.Out() == "ready\n"; }));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait().exit_code, 9);
}

TEST(Run, WaitsIsCancelledAndTimesOut) {
  Sandbox box;
  Process holder = box.Gpumux({"run", "--mem", "100GiB", "--name", "holder", "--", "sleep", "60"});
  ASSERT_TRUE(WaitUntil("the holder runs", [&] { return box.DaemonPid() > 0 && !Tenants(box).empty(); }));
  const Outcome refused = box.RunGpumux({"run", "--mem", "100GiB", "--no-wait", "--", "true"});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_THAT(refused.err, HasSubstr("100.0 GiB"));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "100GiB", "--wait=200ms", "--", "true"}).exit_code, 5);

  Process waiter = box.Gpumux({"run", "--mem", "100GiB", "--name", "waiter", "--", "true"});
  ASSERT_TRUE(
      WaitUntil("the waiter says so", [&] { return waiter.Err().find("waiting") != std::string::npos; }));
  EXPECT_THAT(waiter.Err(), HasSubstr("holder"));
  EXPECT_EQ(Tenants(box).size(), 2u);
  waiter.Signal(SIGINT);
  EXPECT_EQ(waiter.Wait().exit_code, 130);
  EXPECT_TRUE(WaitUntil("the request is gone", [&] { return Tenants(box).size() == 1; }));

  // And one that waits long enough runs.
  Process next = box.Gpumux({"run", "--mem", "100GiB", "--", "echo", "ran"});
  ASSERT_TRUE(
      WaitUntil("the next one waits", [&] { return next.Err().find("waiting") != std::string::npos; }));
  EXPECT_EQ(box.RunGpumux({"stop", "holder"}).exit_code, 0);
  EXPECT_EQ(holder.Wait().exit_code, 143);
  const Outcome ran = next.Wait();
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "ran\n");
}

// A program whose daemon dies ends; another daemon may start, or cannot.
void EndWithoutItsDaemon(bool another) {
  Sandbox box;
  const std::string go = box.dir() + "/go";
  Process run = box.Gpumux({"run", "--summary", "--", "sh", "-c",
                            "echo ready; while [ ! -e " + go + " ]; do sleep 0.05; done; exit 3"});
  ASSERT_TRUE(WaitUntil("the program is ready", [&] { return run.Out() == "ready\n"; }));
  ASSERT_TRUE(WaitUntil("there is one daemon", [&] { return Daemons(box).size() == 1; }));
  const auto daemons = Daemons(box);
  ASSERT_EQ(daemons.size(), 1u);
  // Whoever holds this is about to start a daemon: nobody else does.
  const int lock = ::open((box.runtime_dir() + "/sim/start.lock").c_str(), O_RDWR | O_CLOEXEC);
  if (!another) {
    EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  }
  ::kill(daemons[0], SIGKILL);
  ASSERT_TRUE(WaitUntil("the daemon is gone", [&] { return Daemons(box).empty(); }));
  EXPECT_FALSE(run.Ended());
  std::ofstream(go) << "go";
  const Outcome ended = run.Wait();
  EXPECT_EQ(ended.exit_code, 3);
  EXPECT_THAT(ended.err, HasSubstr(another ? "done in" : "record of this run is missing"));
  ::close(lock);
}

TEST(Run, GoesOnWithoutItsDaemonAndSaysSo) { EndWithoutItsDaemon(false); }
TEST(Run, IsRecordedByTheNextDaemon) { EndWithoutItsDaemon(true); }

TEST(Run, ReturnsWithItsProgramWhileWhatThatLeftKeepsTheLease) {
  Sandbox box;
  const Outcome run = box.RunGpumux(
      {"run", "--mem", "20GiB", "--name", "parent", "--", "sh", "-c",
       Sandbox::Program("gpumux-workload") + " --alloc 10GiB --hold 60 --ready " + box.dir() +
           "/ready >/dev/null 2>&1 & while [ ! -e " + box.dir() + "/ready ]; do sleep 0.05; done; echo $!"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto tenants = Tenants(box);
  ASSERT_EQ(tenants.size(), 1u);
  EXPECT_GE(tenants[0]["mem_used_bytes"].get<uint64_t>(), 10ull << 30);
  ::kill(std::stoi(run.out), SIGKILL);
  EXPECT_TRUE(WaitUntil("the lease ends", [&] { return Tenants(box).empty(); }));
}

// `run` and the program are gone before the process in the background first uses CUDA.
void UsesCudaAfterItsLeader(Sandbox& box, bool kill_run) {
  const std::string go = box.dir() + "/go", there = box.dir() + "/there", report = box.dir() + "/report";
  const std::string background = "touch " + there + "; while [ ! -e " + go +
                                 " ]; do sleep 0.05; done; exec " + Sandbox::Program("gpumux-workload") +
                                 " --alloc 5GiB --hold 60 --ready " + box.dir() + "/ready --json";
  const std::string leader = "setsid sh -c '" + background + "' >" + report + " 2>&1 & while [ ! -e " +
                             there + " ]; do sleep 0.05; done" + (kill_run ? "; kill -9 $PPID" : "");
  Process run =
      box.Gpumux({"run", "--summary", "--mem", "20GiB", "--name", "leader", "--", "sh", "-c", leader});
  const Outcome ended = run.Wait();
  EXPECT_EQ(ended.exit_code, kill_run ? 137 : 0) << ended.err;
  if (!kill_run) {
    EXPECT_THAT(ended.err, HasSubstr("left in the background keep"));
  }
  ASSERT_TRUE(WaitUntil("only the background is left",
                        [&] { return Tenants(box)[0]["left_behind_pids"].size() == 1; }));
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("left in the background, keeps its promise"));
  std::ofstream(go) << "go";
  ASSERT_TRUE(WaitUntil("it holds memory", [&] { return std::filesystem::exists(box.dir() + "/ready"); }));
  const auto tenant = Tenants(box)[0];
  EXPECT_EQ(tenant["enforced"]["memory"], "guard");
  EXPECT_GE(tenant["mem_used_bytes"].get<uint64_t>(), 5ull << 30);
  EXPECT_EQ(box.RunGpumux({"stop", "leader"}).exit_code, 0);
  EXPECT_TRUE(WaitUntil("the lease ends", [&] { return Tenants(box).empty(); }));
}

TEST(Run, ABackgroundProcessIsTheTenantsThoughItsLeaderHasEnded) {
  Sandbox box;
  UsesCudaAfterItsLeader(box, false);
}

TEST(Run, ABackgroundProcessIsTheTenantsThoughItsRunWasKilled) {
  Sandbox box;
  UsesCudaAfterItsLeader(box, true);
}

TEST(Run, AsksTheNextDaemonWhenAnIdleOneLeavesWithoutAWord) {
  Sandbox box;
  const std::string dir = box.runtime_dir() + "/sim";
  std::filesystem::create_directory(dir);
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all);
  auto listener = ipc::UnixListener::Listen(dir + "/session.sock", SOCK_SEQPACKET, 0600);
  ASSERT_TRUE(listener) << listener.error().message;
  Process run = box.Gpumux({"run", "--mem", "1GiB", "--", "echo", "ran"});
  UniqueFd asked;
  ASSERT_TRUE(WaitUntil("it asks", [&] {
    auto fd = listener->Accept();
    if (fd && fd->valid()) asked = std::move(*fd);
    return asked.valid();
  }));
  *listener = ipc::UnixListener();  // the old one's path goes with the right-hand side
  asked.reset();
  const Outcome ended = run.Wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out, "ran\n");
}

TEST(Run, DoesNotWaitForADaemonThatHangs) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux({"run", "--", "true"}).exit_code, 0);
  // The keeper is one of its name until it executes its own program.
  ASSERT_TRUE(WaitUntil("the daemon is alone", [&] { return Daemons(box).size() == 1; }));
  const auto daemons = Daemons(box);
  ::kill(daemons[0], SIGSTOP);
  const Outcome run = box.RunGpumux({"run", "--", "true"});
  ::kill(daemons[0], SIGCONT);
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, HasSubstr("the daemon does not answer"));
}

TEST(Run, SaysWhyItsProgramWasEnded) {
  Sandbox box;
  const Outcome late = box.RunGpumux({"run", "--summary", "--time", "200ms", "--", "sleep", "60"});
  EXPECT_EQ(late.exit_code, 143);
  EXPECT_THAT(late.err, HasSubstr("(its time was over)"));
}

TEST(Run, ARefusalInJsonHasItsCode) {
  Sandbox box;
  const auto code = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"run", "--json"});
    args.insert(args.end(), {"--", "true"});
    return nlohmann::json::parse(box.RunGpumux(args).err)["error"]["code"];
  };
  EXPECT_EQ(code({"--mem", "200GiB"}), "denied");
  EXPECT_EQ(code({"--gpu", "7"}), "not_found");
  Process holder = box.Gpumux({"run", "--mem", "100GiB", "--", "sleep", "60"});
  ASSERT_TRUE(WaitUntil("the holder runs", [&] { return !Tenants(box).empty(); }));
  EXPECT_EQ(code({"--mem", "100GiB", "--no-wait"}), "conflict");
  EXPECT_EQ(code({"--mem", "100GiB", "--wait=100ms", "--quiet"}), "timeout");
}

TEST(Run, TellsItsProgramWhatTheFiguresAddUpTo) {
  Sandbox box;
  Process run = box.Gpumux({"run", "--mem", "20GiB", "--", "sh", "-c",
                            Sandbox::Program("gpumux-workload") + " --alloc 5GiB --hold 60 --json --ready " +
                                box.dir() + "/ready & wait"});
  ASSERT_TRUE(WaitUntil("it holds memory", [&] { return std::filesystem::exists(box.dir() + "/ready"); }));
  const auto tenant = Tenants(box)[0];
  EXPECT_EQ(box.RunGpumux({"stop", tenant["id"].get<std::string>()}).exit_code, 0);
  run.Wait();
  const Outcome told = box.RunGpumux(
      {"run", "--mem", "20GiB", "--", Sandbox::Program("gpumux-workload"), "--alloc", "5GiB", "--json"});
  EXPECT_EQ(tenant["mem_used_bytes"].get<uint64_t>() + tenant["mem_allowance_bytes"].get<uint64_t>() +
                nlohmann::json::parse(told.out)["free_bytes"].get<uint64_t>(),
            20ull << 30);
}

TEST(Run, ClosingLineNamesWhatWasRefused) {
  Sandbox box;
  const Outcome run = box.RunGpumux({"run", "--mem", "10GiB", "--summary", "--",
                                     Sandbox::Program("gpumux-workload"), "--alloc", "12GiB", "--json"});
  EXPECT_EQ(run.exit_code, 3);
  const auto report = nlohmann::json::parse(run.out);
  EXPECT_EQ(report["alloc"]["result"], "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(report["total_bytes"], 10ull << 30);
  EXPECT_THAT(run.err,
              HasSubstr("1 refusal (the last of 12.0 GiB on GPU 0): its limit of 10.0 GiB was the reason"));
}

TEST(Reading, WorksWithoutADaemonAndSaysSo) {
  Sandbox box;
  const Outcome text = box.RunGpumux({"status"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.err, HasSubstr("NVML's alone"));
  EXPECT_THAT(text.out, HasSubstr("simulated"));
  const Outcome json = box.RunGpumux({"status", "--json"});
  const auto body = nlohmann::json::parse(json.out);
  EXPECT_EQ(body["schema"], "gpumux.status/1");
  EXPECT_EQ(body["simulated"], true);
  EXPECT_EQ(body["data"]["daemon"], nullptr);
  EXPECT_EQ(body["data"]["gpus"][0]["mem_promisable_bytes"], nullptr);
  EXPECT_EQ(body["data"]["gpus"][0]["mem_promisable_bytes_reason"], "no daemon runs");
  EXPECT_EQ(box.RunGpumux({"ps"}).exit_code, 3);
  EXPECT_EQ(box.RunGpumux({"stop", "x"}).exit_code, 3);
  EXPECT_EQ(box.RunGpumux({"explain", "x"}).exit_code, 3);
  EXPECT_EQ(nlohmann::json::parse(box.RunGpumux({"version", "--json"}).out)["data"]["daemon"], nullptr);
  EXPECT_TRUE(Daemons(box).empty());
}

TEST(Reading, ShowsATenantAndStopFindsItByName) {
  Sandbox box;
  Process run =
      box.Gpumux({"run", "--mem", "20GiB", "--name", "serve", "--", Sandbox::Program("gpumux-workload"),
                  "--alloc", "5GiB", "--hold", "60", "--ready", box.dir() + "/ready"});
  ASSERT_TRUE(WaitUntil("it holds memory", [&] { return std::filesystem::exists(box.dir() + "/ready"); }));
  EXPECT_THAT(box.RunGpumux({"status"}).out, HasSubstr("serve"));
  EXPECT_THAT(box.RunGpumux({"ps"}).out, HasSubstr("in force"));
  EXPECT_EQ(box.RunGpumux({"stop", "nobody"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"explain", "nobody"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"explain"}).exit_code, 2);
  const Outcome text = box.RunGpumux({"explain", "serve"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("20.0 GiB guaranteed, limit 20.0 GiB"));
  EXPECT_THAT(text.out, HasSubstr("memory limit: proven, by guard"));
  EXPECT_THAT(text.out, HasSubstr("memory guarantee: proven, by ledger"));
  EXPECT_THAT(text.out, HasSubstr("isolation: unproven"));
  // NVML's figure is that of the daemon's last reading.
  EXPECT_TRUE(WaitUntil("NVML's figure stands beside the ledger's", [&] {
    const auto explained = nlohmann::json::parse(box.RunGpumux({"explain", "--json", "serve"}).out);
    const auto& figures = explained["data"]["processes"][0]["gpus"][0];
    const auto ledger = figures["mem_ledger_bytes"].get<uint64_t>();
    const auto nvml = figures["mem_nvml_bytes"];
    return nvml.is_number() && nvml.get<uint64_t>() >= 5ull << 30 && ledger >= nvml.get<uint64_t>();
  }));
  const Outcome stop = box.RunGpumux({"stop", "--grace", "5s", "serve"});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_THAT(stop.out, HasSubstr("sent SIGTERM; SIGKILL after 5.0 s"));
  EXPECT_EQ(run.Wait().exit_code, 143);
  EXPECT_THAT(box.RunGpumux({"ps"}).out, Not(HasSubstr("serve")));
}

}  // namespace
}  // namespace gpumux::test
