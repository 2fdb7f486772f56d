// SPDX-License-Identifier: Apache-2.0
//
// `gpumux history`: every kind of ending, a hundred tenants, daemons that die meanwhile.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "../support/sandbox.h"
#include "past.h"

namespace gpumux::test {
namespace {

struct Kind {
  const char* outcome;
  std::string program;  // of a shell, once it may go on
  int exit_code;        // of `gpumux run`
  std::vector<std::string> options = {};
  bool stopped = false;  // by `gpumux stop`
};

TEST(History, AHundredTenantsEndInEveryWayWhileDaemonsDie) {
  Sandbox box;
  const std::string workload = "exec " + box.Program("gpumux-workload");
  const std::vector<Kind> kinds = {
      {.outcome = "completed", .program = "exit 0", .exit_code = 0},
      {.outcome = "failed", .program = "exit 3", .exit_code = 3},
      {.outcome = "killed", .program = "kill -9 $$", .exit_code = 128 + SIGKILL},
      {.outcome = "out-of-memory", .program = workload + " --alloc 3GiB >/dev/null 2>&1", .exit_code = 3},
      {.outcome = "stopped", .program = "sleep 600", .exit_code = 128 + SIGTERM, .stopped = true},
      {.outcome = "completed",
       .program = workload + " --alloc 1GiB --seconds 0.01 >/dev/null",
       .exit_code = 0},
      {.outcome = "time-limit",
       .program = "sleep 600",
       .exit_code = 128 + SIGTERM,
       .options = {"--time", "500ms"}},
      {.outcome = "failed", .program = "exit 255", .exit_code = 255},
      {.outcome = "killed", .program = "kill -TERM $$", .exit_code = 128 + SIGTERM},
      {.outcome = "completed", .program = "true", .exit_code = 0, .options = {"--label", "kind=last"}},
  };
  constexpr size_t kRounds = 4, kEach = 25;
  // The others may be over before the last one has started.
  constexpr size_t kUnlimited = 23;
  const auto kind_of = [&](size_t i) -> const Kind& { return kinds[i % kinds.size()]; };
  for (size_t round = 0; round < kRounds; ++round) {
    const std::string go = box.dir() + "/go-" + std::to_string(round);
    std::vector<Process> runs;
    for (size_t i = 0; i < kEach; ++i) {
      std::vector<std::string> args = {"run", "--mem", "2GiB", "--name",
                                       "t" + std::to_string(round) + "-" + std::to_string(i)};
      args.insert(args.end(), kind_of(i).options.begin(), kind_of(i).options.end());
      args.insert(args.end(), {"--", "/bin/sh", "-c",
                               "while [ ! -e " + go + " ]; do sleep 0.02; done; " + kind_of(i).program});
      runs.push_back(box.Gpumux(args));
    }
    ASSERT_TRUE(WaitUntil("all run", [&] {
      const json status = box.StatusData();
      size_t running = 0;
      for (const auto& tenant : status["tenants"])
        running += tenant["state"] == "running" && tenant["time_limit_seconds"].is_null();
      return running == kUnlimited;
    }));
    // Their ends and its end fall together.
    std::ofstream(go).flush();
    if (round % 2 == 1) KillDaemon(box);
    for (size_t i = 0; i < kEach; ++i) {
      if (!kind_of(i).stopped) continue;
      const std::string name = "t" + std::to_string(round) + "-" + std::to_string(i);
      ASSERT_TRUE(
          WaitUntil("a daemon takes the stop", [&] { return box.RunGpumux({"stop", name}).exit_code == 0; }));
    }
    for (size_t i = 0; i < kEach; ++i)
      EXPECT_EQ(runs[i].Wait().exit_code, kind_of(i).exit_code) << round << ", " << i;
  }
  json all;
  ASSERT_TRUE(WaitUntil("the history has all", [&] {
    all = History(box, {"--limit", "all"});
    return all["totals"]["tenants"] == kRounds * kEach;
  }));
  std::set<std::string> names;
  for (const json& past : all["tenants"]) {
    const auto name = past["name"].get<std::string>();
    EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
    const Kind& kind = kind_of(std::stoul(name.substr(name.find('-') + 1)));
    EXPECT_EQ(past["outcome"], kind.outcome) << past.dump();
    const json &code = past["ended"]["exit_code"], &signal = past["ended"]["signal"];
    const int ended =
        code.is_number() ? code.get<int>() : 128 + (signal.is_number() ? signal.get<int>() : 1000);
    EXPECT_EQ(ended, kind.exit_code) << past.dump();
    EXPECT_EQ(past["mem_limit_bytes"], uint64_t{2} << 30);
    EXPECT_GE(past["ended_ms"], past["started_ms"]);
  }
  EXPECT_EQ(names.size(), kRounds * kEach);
  EXPECT_EQ(all["totals"]["outcomes"], (json{{"completed", 28},
                                             {"failed", 20},
                                             {"killed", 20},
                                             {"out-of-memory", 12},
                                             {"stopped", 12},
                                             {"time-limit", 8}}));
  EXPECT_EQ(History(box, {"--label", "kind=last"})["totals"]["tenants"], 8);
  EXPECT_EQ(History(box, {"--limit", "7"})["tenants"].size(), 7u);
  // Newest first, and no daemon is needed to read it.
  KillDaemon(box);
  ASSERT_TRUE(WaitUntil("no daemon", [&] { return box.DaemonPid() == 0; }));
  EXPECT_EQ(History(box, {"--limit", "all"})["tenants"], all["tenants"]);
  EXPECT_EQ(History(box, {"--outcome", "out-of-memory"})["totals"]["tenants"], 12);
}

TEST(History, SaysOfATenantWhatStatusSaid) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop";
  Process run = box.Gpumux({"run", "--mem", "2GiB:5GiB", "--name", "told", "--label", "team=x", "--",
                            box.Program("gpumux-workload"), "--alloc", "1GiB", "--hold", "600"});
  json last;
  ASSERT_TRUE(WaitUntil("it holds its memory, as was seen more than once", [&] {
    const json status = box.StatusData();
    if (status["tenants"].empty()) return false;
    last = status["tenants"][0];
    return last["mem_used_bytes"] > (uint64_t{1} << 30);
  }));
  ASSERT_EQ(box.RunGpumux({"set", "told", "--mem", "3GiB:6GiB"}).exit_code, 0);
  ASSERT_TRUE(WaitUntil("the change shows", [&] {
    last = box.StatusData()["tenants"][0];
    return last["mem_limit_bytes"] == uint64_t{6} << 30;
  }));
  ASSERT_EQ(box.RunGpumux({"stop", "told"}).exit_code, 0);
  run.Wait();
  const json past = Past(box, "told");
  for (const char* key : {"id", "owner", "owner_uid", "mode", "priority", "isolation", "mem_guaranteed_bytes",
                          "mem_limit_bytes", "started_at", "command", "cwd", "labels", "waited_seconds"})
    EXPECT_EQ(past[key], last[key]) << key;
  EXPECT_EQ(past["outcome"], "stopped");
  EXPECT_GE(past["mem_peak_bytes"], last["mem_used_bytes"]);
  EXPECT_EQ(past["gpus"][0]["uuid"], last["gpus"][0]["uuid"]);
  ASSERT_EQ(past["events"].size(), 2u) << past["events"].dump();
  EXPECT_EQ(past["events"][0]["kind"], "changed");
  EXPECT_NE(past["events"][0]["text"].get<std::string>().find("6.0 GiB"), std::string::npos)
      << past["events"].dump();
  EXPECT_EQ(past["events"][1]["kind"], "stopping");
}

TEST(History, TableTotalsAndCsv) {
  Sandbox box;
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--name", "fine", "--", "true"}).exit_code, 0);
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--name", "wrong", "--", "false"}).exit_code, 1);
  Past(box, "fine");
  Past(box, "wrong");
  const Outcome table = box.RunGpumux({"history"});
  EXPECT_NE(table.out.find("wrong"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("exit code 1"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("2 tenants: 1 completed, 1 failed; ran "), std::string::npos) << table.out;
  const Outcome csv = box.RunGpumux({"history", "--csv", "--name", "wrong"});
  EXPECT_EQ(std::count(csv.out.begin(), csv.out.end(), '\n'), 2) << csv.out;
  EXPECT_NE(csv.out.find(",wrong,"), std::string::npos) << csv.out;
  EXPECT_EQ(box.RunGpumux({"history", "--outcome", "splendid"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"history", "--since", "soon"}).exit_code, 2);
}

TEST(History, KnowsWhatTheGpuWasLike) {
  Sandbox box;
  Process run =
      box.Gpumux({"run", "--mem", "4GiB", "--mode", "timeslice", "--name", "holds", "--", "sleep", "600"});
  ASSERT_TRUE(WaitUntil("it runs", [&] { return !box.StatusData()["tenants"].empty(); }));
  // A daemon looks when it starts, and each minute.
  KillDaemon(box);
  json stretches;
  ASSERT_TRUE(WaitUntil("the next daemon has looked", [&] {
    const Outcome o = box.RunGpumux({"history", "--gpu", "0", "--json"});
    const json answer = json::parse(o.out, nullptr, false);
    if (!answer.is_object() || answer["data"]["stretches"].empty()) return false;
    stretches = answer["data"]["stretches"];
    return stretches.back()["mem_guaranteed_bytes"] == uint64_t{4} << 30;
  }));
  EXPECT_EQ(stretches.back()["modes"], json{"timeslice"});
  EXPECT_EQ(stretches.back()["tenants"], 1);
  EXPECT_TRUE(stretches.back()["mem_unmanaged_bytes"].is_number());
  const Outcome table = box.RunGpumux({"history", "--gpu", "all", "--each", "1h"});
  EXPECT_NE(table.out.find("timeslice"), std::string::npos) << table.out;
  EXPECT_EQ(box.RunGpumux({"history", "--gpu", "7"}).exit_code, 6);
  EXPECT_EQ(box.RunGpumux({"history", "--gpu", "0", "--owner", "anna"}).exit_code, 2);
  EXPECT_EQ(box.RunGpumux({"history", "--each", "1h"}).exit_code, 2);
}

// Something of a tenant is left when its `run` goes, with the exit code that nobody else knows.
TEST(History, KnowsTheExitCodeOfOneThatLeftSomethingBehind) {
  Sandbox box;
  const std::string stop = box.dir() + "/stop", token = box.dir() + "/token";
  std::ofstream(token).flush();
  box.SetEnv("GPUMUX_KILL_AT", "end-stored@" + token);
  const Outcome o = box.RunGpumux({"run", "--mem", "1GiB", "--name", "leaves", "--", "/bin/sh", "-c",
                                   "(while [ ! -e " + stop + " ]; do sleep 0.02; done) & exit 9"});
  EXPECT_EQ(o.exit_code, 9) << o.err;
  ASSERT_TRUE(WaitUntil("the daemon died there", [&] { return access(token.c_str(), F_OK) != 0; }));
  EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--name", "next", "--", "true"}).exit_code, 0);
  std::ofstream(stop).flush();
  const json past = Past(box, "leaves");
  EXPECT_EQ(past["outcome"], "failed");
  EXPECT_EQ(past["ended"]["exit_code"], 9);
}

// A death between the end of a lease and the history's disk.
TEST(History, LosesNobodyWhenTheDaemonDiesAtTheirEnd) {
  for (const char* const point : {"lease-ending", "lease-finished"}) {
    Sandbox box;
    const std::string token = box.dir() + "/token";
    std::ofstream(token).flush();
    box.SetEnv("GPUMUX_KILL_AT", std::string(point) + "@" + token);
    const Outcome o =
        box.RunGpumux({"run", "--mem", "1GiB", "--name", "last", "--", "/bin/sh", "-c", "exit 7"});
    EXPECT_EQ(o.exit_code, 7) << o.err;
    ASSERT_TRUE(WaitUntil("the daemon died there", [&] { return access(token.c_str(), F_OK) != 0; }))
        << point;
    // Whoever comes next starts the next daemon.
    EXPECT_EQ(box.RunGpumux({"run", "--mem", "1GiB", "--name", "next", "--", "true"}).exit_code, 0);
    const json past = Past(box, "last");
    EXPECT_EQ(past["outcome"], "failed") << point << past.dump();
    EXPECT_EQ(past["ended"]["exit_code"], 7) << point;
    EXPECT_EQ(History(box, {"--name", "last"})["totals"]["tenants"], 1) << point;
  }
}

}  // namespace
}  // namespace gpumux::test
